"""Files of cache states and of past texts, so that stored conversations go on without rereading."""
