"""The API's contract: its OpenAPI document, and the client that is written from it and carried."""
