//! The table of hostile inputs: what a peer sends, to which end, and what must come of it. Every row is fed whole, byte by
//! byte and at random splits, and must end the same way each time.

mod handshake;
