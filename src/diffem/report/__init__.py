"""Pictures of a run, and the page that shows them."""
