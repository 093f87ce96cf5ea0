"""Every op in every layout computes what plain torch computes."""
