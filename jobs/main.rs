//! The `logferry` binary: parse, configure, run, exit code. The rest is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    jobs::cli::main()
}
