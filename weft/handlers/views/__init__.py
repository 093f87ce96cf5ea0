"""Views of split dims."""
