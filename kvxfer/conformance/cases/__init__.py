"""Cases of the conformance kit, one module per group of requirements."""
