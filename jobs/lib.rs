//! logferry: the commands.
