"""What a chat model's text means: answers, thoughts and calls of functions, in pieces or as a whole."""
