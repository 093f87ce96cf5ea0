"""What movements take: seconds by the links, closed forms, and the fewest bytes that anybody could move."""
