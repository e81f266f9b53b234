"""Every interleaving of the real machines, breadth first, under a hostile world.

`search(config)` meets each distinct state once and checks the invariants in it;
`transcript` writes the shortest way to a violation down. See docs/explore.md.
"""
