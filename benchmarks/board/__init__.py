"""The board: Collage against its rivals on many models, as dated rows of JSON and one static page."""
