"""Apache Kafka for tests: a broker of its own, a proxy before it, and what a test does with either kind."""
