"""Going through the tiers: inside each host first, between hosts once, inside each host again.

A *cell* is what shares fast links: a host, or a rack. Where a result has replicas in a cell, each byte from beyond enters it
once, at one of them, who passes it on; contributions are reduced inside a cell before one of it sends them out. So a staged
step brings every device exactly what the same step would bring straight, and only over which links differs.
"""
