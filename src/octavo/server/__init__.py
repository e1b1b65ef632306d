"""The HTTP server: OpenAI's API over ``AsyncEngine``, metrics, and the page that shows the memory."""
