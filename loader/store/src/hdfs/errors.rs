//! From hdfs-native's errors, by the Java class in them, to ours.

use std::io::ErrorKind as IoErrorKind;
use std::time::Duration;

use hdfs_native::HdfsError;

use crate::{Cause, Error, Operation, StorePath};

/// Why a request has no good answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// Our time limit passed; the request may still be carried out.
    NoAnswer(Duration),
    /// hdfs-native gave up, or the NameNode refused.
    Hdfs(HdfsError),
}

/// A request, as errors describe it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) operation: Operation,
    pub(super) path: &'a StorePath,
    /// Of the NameNode, or of all of a name service.
    pub(super) address: &'a str,
}

/// What the NameNode said, without its stack trace.
#[derive(Debug, thiserror::Error)]
#[error("{message} ({class})")]
struct Remote {
    class: String,
    message: String,
}

#[derive(Debug, thiserror::Error)]
#[error("no answer from {address} within {after:?}")]
struct NoAnswer {
    address: String,
    after: Duration,
}

/// What went wrong between us and a DataNode.
#[derive(Debug, thiserror::Error)]
#[error("data transfer failed: {0}")]
struct Transfer(String);

/// hdfs-native appends everything it knows of each DataNode; the debug log gets it.
fn in_short(text: &str) -> String {
    tracing::debug!(text, "data transfer failed");
    let line = first_line(text);
    let words = line.split(['[', '{']).next().unwrap_or(line);
    words.trim_end_matches([' ', ':']).to_owned()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// `org.apache.hadoop.ipc.StandbyException` → `StandbyException`.
fn simple_name(class: &str) -> &str {
    class.rsplit(['.', '$']).next().unwrap_or(class)
}

/// What the NameNode said, in one line. The whole trace goes to the debug log.
fn remote(class: &str, trace: &str) -> Cause {
    tracing::debug!(class, trace, "namenode refused a request");
    let (class, message) = (simple_name(class).to_owned(), first_line(trace).to_owned());
    Box::new(Remote { class, message })
}

/// Whether the connection was never made, so that the request cannot have been carried out.
fn never_sent(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        IoErrorKind::AddrNotAvailable
            | IoErrorKind::ConnectionRefused
            | IoErrorKind::HostUnreachable
            | IoErrorKind::NetworkUnreachable
            | IoErrorKind::NotConnected
    ) || error
        .to_string()
        .starts_with("failed to lookup address information")
}

impl Request<'_> {
    fn unreachable(&self, source: Cause) -> Error {
        let (operation, path) = (self.operation, self.path.clone());
        Error::Unreachable {
            operation,
            path,
            address: self.address.to_owned(),
            source,
        }
    }

    fn io(&self, source: Cause) -> Error {
        Error::Io {
            operation: self.operation,
            path: self.path.clone(),
            source,
        }
    }

    /// The answer was lost: of a change we know nothing.
    fn lost(&self, source: Cause) -> Error {
        let (operation, path) = (self.operation, self.path.clone());
        match self.operation.changes() {
            true => Error::OutcomeUnknown {
                operation,
                path,
                source,
            },
            false => self.unreachable(source),
        }
    }

    fn no_answer(&self, after: Duration) -> Error {
        let (operation, path) = (self.operation, self.path.clone());
        let address = self.address.to_owned();
        match self.operation.changes() {
            true => {
                let source = Box::new(NoAnswer { address, after });
                Error::OutcomeUnknown {
                    operation,
                    path,
                    source,
                }
            }
            false => Error::Timeout {
                operation,
                path,
                address,
                after,
            },
        }
    }

    /// The error of a request to the NameNode.
    pub(super) fn error(&self, failure: Failure) -> Error {
        let path = self.path.clone();
        let error = match failure {
            Failure::NoAnswer(after) => return self.no_answer(after),
            Failure::Hdfs(error) => error,
        };
        match error {
            HdfsError::RPCError(class, trace) | HdfsError::FatalRPCError(class, trace) => {
                self.refused(&class, &trace)
            }
            HdfsError::IOError(error) if never_sent(&error) => self.unreachable(error.into()),
            HdfsError::IOError(error) => self.lost(error.into()),
            HdfsError::InvalidRPCResponse(error) => self.lost(error.into()),
            HdfsError::SASLError(_) | HdfsError::GSSAPIError(..) | HdfsError::NoSASLMechanism => {
                self.unreachable(error.into())
            }
            // The other text begins with the path, so a file called "lease" cannot confuse this.
            HdfsError::AlreadyExists(trace) if trace.starts_with("Failed to CREATE_FILE") => {
                Error::FileLease {
                    path,
                    source: remote("AlreadyBeingCreatedException", &trace),
                }
            }
            HdfsError::AlreadyExists(_) if self.operation == Operation::Replace => {
                Error::IsADirectory { path }
            }
            HdfsError::AlreadyExists(_) => Error::AlreadyExists { path },
            HdfsError::FileNotFound(_) => Error::NotFound { path },
            HdfsError::IsADirectoryError(_) => Error::IsADirectory { path },
            HdfsError::InvalidPath(reason) => Error::InvalidPath {
                path: path.to_string(),
                reason,
            },
            HdfsError::DataTransferError(text) => self.io(Box::new(Transfer(in_short(&text)))),
            HdfsError::ChecksumError
            | HdfsError::InvalidArgument(_)
            | HdfsError::UrlParseError(_)
            | HdfsError::OperationFailed(_)
            | HdfsError::BlocksNotFound(_)
            | HdfsError::TrashNotEnabled
            | HdfsError::UnsupportedErasureCodingPolicy(_)
            | HdfsError::ErasureCodingError(_)
            | HdfsError::UnsupportedFeature(_)
            | HdfsError::InternalError(_)
            | HdfsError::XmlParseError(_) => self.io(error.into()),
        }
    }

    /// A superuser asking for what lies below a file is told that it is missing, others that the file
    /// is no directory. Make it one answer.
    fn below_a_file(&self) -> Error {
        let path = self.path.clone();
        match self.operation.changes() && self.operation != Operation::Delete {
            true => Error::NotADirectory { path },
            false => Error::NotFound { path },
        }
    }

    /// Of a `FileNotFoundException`: whether what is missing is the directory of what is to be made.
    fn parent_is_missing(&self, text: &str) -> bool {
        let makes = matches!(
            self.operation,
            Operation::Mkdir
                | Operation::Mkdirs
                | Operation::Create
                | Operation::Put
                | Operation::Replace
        );
        makes || text.starts_with("rename destination parent")
    }

    /// The NameNode answered with a Java exception.
    fn refused(&self, class: &str, trace: &str) -> Error {
        let source = remote(class, trace);
        let (class, text) = (simple_name(class), first_line(trace));
        let (operation, path) = (self.operation, self.path.clone());
        match class {
            "FileNotFoundException" if text.starts_with("Path is not a file") => {
                Error::IsADirectory { path }
            }
            "FileNotFoundException" if self.parent_is_missing(text) => {
                Error::ParentMissing { path }
            }
            "FileNotFoundException" => Error::NotFound { path },
            "ParentNotDirectoryException" | "PathIsNotDirectoryException" => self.below_a_file(),
            "AccessControlException" if text.ends_with("(is not a directory)") => {
                self.below_a_file()
            }
            "AccessControlException" | "AuthorizationException" => Error::PermissionDenied {
                operation,
                path,
                source,
            },
            "SafeModeException" => Error::SafeMode {
                operation,
                path,
                source,
            },
            // With HA the exception of a NameNode that is starting comes wrapped.
            "RetriableException" if text.contains("SafeModeException") => Error::SafeMode {
                operation,
                path,
                source,
            },
            "RetriableException" | "StandbyException" | "ObserverRetryOnActiveException" => {
                self.unreachable(source)
            }
            "NSQuotaExceededException"
            | "DSQuotaExceededException"
            | "QuotaByStorageTypeExceededException"
            | "QuotaExceededException" => Error::Quota {
                operation,
                path,
                source,
            },
            // The target is there and of the other kind, file or directory.
            "IOException" if text.ends_with("must both be directories") => {
                Error::AlreadyExists { path }
            }
            "PathComponentTooLongException" => Error::NameTooLong { path },
            "InvalidPathException" => Error::InvalidPath {
                path: path.to_string(),
                reason: text.to_owned(),
            },
            _ => self.io(source),
        }
    }

    /// The error of sending data: what names no reason of its own means "again, by a new name". A
    /// lost answer is no riddle here, since the file is given up either way.
    pub(super) fn write_error(&self, failure: Failure) -> Error {
        let error = self.error(failure);
        if let Error::OutcomeUnknown { path, source, .. }
        | Error::Unreachable { path, source, .. }
        | Error::Io { path, source, .. } = error
        {
            return Error::WriteFailed { path, source };
        }
        error
    }

    /// The error of receiving data from a DataNode.
    pub(super) fn read_error(&self, failure: Failure) -> Error {
        let damaged = matches!(failure, Failure::Hdfs(HdfsError::ChecksumError));
        let error = self.error(failure);
        if damaged {
            return error;
        }
        if let Error::Unreachable { path, source, .. } | Error::Io { path, source, .. } = error {
            return Error::ReadFailed { path, source };
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;

    use super::*;
    use crate::ErrorKind;

    fn error(operation: Operation, error: HdfsError) -> Error {
        let path = StorePath::new("/a/lease").unwrap();
        Request {
            operation,
            path: &path,
            address: "nn:1",
        }
        .error(Failure::Hdfs(error))
    }

    fn rpc(operation: Operation, class: &str, text: &str) -> Error {
        error(
            operation,
            HdfsError::RPCError(class.to_owned(), text.to_owned()),
        )
    }

    #[test]
    fn java_classes_become_kinds_of_their_own() {
        let is = |class: &str, text: &str, wanted: &str| {
            let got = rpc(Operation::Create, class, text);
            assert!(format!("{got:?}").starts_with(wanted), "{class}: {got:?}");
        };
        let hdfs = "org.apache.hadoop.hdfs";
        is(
            &format!("{hdfs}.server.namenode.SafeModeException"),
            "",
            "SafeMode",
        );
        is(
            &format!("{hdfs}.protocol.NSQuotaExceededException"),
            "",
            "Quota",
        );
        is(
            &format!("{hdfs}.protocol.DSQuotaExceededException"),
            "",
            "Quota",
        );
        is(
            "org.apache.hadoop.security.AccessControlException",
            "",
            "PermissionDenied",
        );
        is(
            "java.io.FileNotFoundException",
            "Parent directory doesn't exist: /a",
            "ParentMissing",
        );
        is(
            "org.apache.hadoop.fs.ParentNotDirectoryException",
            "",
            "NotADirectory",
        );
        let too_long = format!("{hdfs}.protocol.FSLimitException$PathComponentTooLongException");
        is(&too_long, "", "NameTooLong");
        is(
            "org.apache.hadoop.fs.InvalidPathException",
            "Invalid file name",
            "InvalidPath",
        );
        is("org.apache.hadoop.ipc.StandbyException", "", "Unreachable");
        let wrapped = "org.apache.hadoop.hdfs.server.namenode.SafeModeException: Cannot create";
        is(
            "org.apache.hadoop.ipc.RetriableException",
            wrapped,
            "SafeMode",
        );
        is(
            "org.apache.hadoop.ipc.RetriableException",
            "not started",
            "Unreachable",
        );
        is("java.io.IOException", "odd", "Io");
    }

    #[test]
    fn a_missing_path_depends_on_what_was_asked() {
        let class = "java.io.FileNotFoundException";
        let got = rpc(
            Operation::Rename,
            class,
            "rename source /a is not found.\n\tat x",
        );
        assert!(matches!(got, Error::NotFound { .. }), "{got:?}");
        let got = rpc(
            Operation::Rename,
            class,
            "rename destination parent /b not found.",
        );
        assert!(matches!(got, Error::ParentMissing { .. }), "{got:?}");
        let taken = "Source /f and destination /d must both be directories\n\tat x";
        let got = rpc(Operation::Rename, "java.io.IOException", taken);
        assert!(matches!(got, Error::AlreadyExists { .. }), "{got:?}");
        let got = rpc(Operation::Read, class, "File does not exist: /a");
        assert!(matches!(got, Error::NotFound { .. }), "{got:?}");
        let got = rpc(Operation::Read, class, "Path is not a file: /a");
        assert!(matches!(got, Error::IsADirectory { .. }), "{got:?}");
    }

    #[test]
    fn exists_and_leased_are_told_apart_by_the_text() {
        let exists = "/a/lease for client 127.0.0.1 already exists\n\tat java";
        let got = error(
            Operation::Create,
            HdfsError::AlreadyExists(exists.to_owned()),
        );
        assert!(matches!(got, Error::AlreadyExists { .. }), "{got:?}");
        let leased = "Failed to CREATE_FILE /a/lease for x on 127.0.0.1 because this file lease is \
                      currently owned by y on 127.0.0.1\n\tat java";
        let got = error(
            Operation::Create,
            HdfsError::AlreadyExists(leased.to_owned()),
        );
        assert!(matches!(got, Error::FileLease { .. }), "{got:?}");
        assert!(
            !got.source().unwrap().to_string().contains("java"),
            "{got:?}"
        );
    }

    #[test]
    fn a_lost_answer_is_ambiguous_for_changes_only() {
        let aborted = || HdfsError::IOError(IoErrorKind::ConnectionAborted.into());
        for operation in [
            Operation::Rename,
            Operation::Delete,
            Operation::Create,
            Operation::Mkdir,
        ] {
            assert_eq!(
                error(operation, aborted()).kind(),
                ErrorKind::Ambiguous,
                "{operation}"
            );
        }
        for operation in [Operation::Stat, Operation::List, Operation::Read] {
            let got = error(operation, aborted());
            assert!(matches!(got, Error::Unreachable { .. }), "{got:?}");
        }
    }

    #[test]
    fn a_request_that_was_never_sent_is_not_ambiguous() {
        let refused = HdfsError::IOError(IoErrorKind::ConnectionRefused.into());
        let got = error(Operation::Rename, refused);
        assert!(matches!(got, Error::Unreachable { .. }), "{got:?}");
        assert!(got.to_string().contains("nn:1"), "{got}");
        let no_name = io::Error::other("failed to lookup address information: Name not known");
        let got = error(Operation::Rename, HdfsError::IOError(no_name));
        assert!(matches!(got, Error::Unreachable { .. }), "{got:?}");
    }

    #[test]
    fn what_hdfs_native_knows_of_datanodes_is_not_poured_out() {
        let text = "All DataNodes failed: [DatanodeInfoProto { id: DatanodeIdProto { .. } }]";
        let got = error(
            Operation::Read,
            HdfsError::DataTransferError(text.to_owned()),
        );
        assert_eq!(
            got.source().unwrap().to_string(),
            "data transfer failed: All DataNodes failed"
        );
    }

    #[test]
    fn only_the_first_line_of_a_trace_is_shown() {
        let got = rpc(
            Operation::Stat,
            "java.io.IOException",
            "what\n\tat org.apache.X",
        );
        assert_eq!(got.source().unwrap().to_string(), "what (IOException)");
    }
}
