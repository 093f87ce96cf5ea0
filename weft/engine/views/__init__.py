"""Views: tensors that show what others hold, also where elements had to move."""
