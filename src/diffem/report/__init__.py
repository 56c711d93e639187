"""Pictures of a run, and the HTML report that contains them."""
