"""Small models in plain torch, and the layouts that they are trained in. Nothing in the models knows of a mesh."""
