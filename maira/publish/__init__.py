"""Publishing a model or a judge on the Hugging Face Hub: its model card and its upload."""
