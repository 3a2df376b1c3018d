"""How the label results of the EPFL study depend on the variation of batch times."""
