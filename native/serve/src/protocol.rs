//! What a caller says and hears: the Open Inference Protocol by gRPC, and HTTP with JSON.
