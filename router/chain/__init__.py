"""How a block is named and how a prompt becomes tokens: the ground floor that router and replica share."""
