//! permessage-deflate (RFC 7692): negotiation and the compression state of each direction.
