"""Between text and token ids: tokenizers, detokenizers and chat templates."""
