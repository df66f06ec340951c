"""Reports as one web page each, which opens offline: no script, no request, no other file."""
