"""The live view of the KV pool: looks at the engine, frames of what changed, answers to questions."""
