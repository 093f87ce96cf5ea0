"""Memory: of accelerators, of the host, copies made when they are written to, and how much a movement may hold."""
