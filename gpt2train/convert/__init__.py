"""Conversion of models between this project, Hugging Face and Megatron-LM."""
