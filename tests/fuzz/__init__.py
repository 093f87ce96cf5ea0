"""Programs made at random, run on Weft and on plain torch, and cut down to what still differs."""
