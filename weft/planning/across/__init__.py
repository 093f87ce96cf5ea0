"""Pending reductions from mesh to mesh: who collects which contributions, so that no device receives much more than others.

Two meshes have no coordinates in common, so nothing here is arithmetic on them. The tensor is cut into *cells* that no cut of
either layout divides; what has to be received for each, and which devices could receive it, is written down, shared out evenly,
and turned into boxes. That takes time in proportion to the cells and those who could receive each: between large meshes only a few of
these are asked for each cell, and between the largest, contributions are reduced where they are.
"""
