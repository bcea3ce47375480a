//! How a command fails: what is said to the operator, and the exit code.

use loader_pipeline::error::Exit;

/// A command's failure.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    error: anyhow::Error,
    remedy: Option<String>,
}

/// What a command returns: an exit status other than 0 can also be a success of a kind (76).
pub type Outcome = Result<Option<Exit>, Failure>;

impl Failure {
    /// A mistake in the call or a configuration.
    pub fn usage(problem: impl std::fmt::Display) -> Self {
        Self {
            exit: Exit::Usage,
            error: anyhow::anyhow!("{problem}"),
            remedy: None,
        }
    }

    /// A failure with an exit status of its own.
    pub fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self {
            exit,
            error: error.into(),
            remedy: None,
        }
    }

    /// Says what to do about it.
    #[must_use]
    pub fn try_this(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Exit status.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        self.exit
    }

    /// `error:`, `caused by:` and `try:`, one a line.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = format!("error: {}\n", self.error);
        for cause in self.error.chain().skip(1) {
            text.push_str(&format!("caused by: {cause}\n"));
        }
        if let Some(remedy) = &self.remedy {
            text.push_str(&format!("try: {remedy}\n"));
        }
        text
    }
}

impl From<loader_pipeline::error::Error> for Failure {
    fn from(error: loader_pipeline::error::Error) -> Self {
        Self {
            exit: error.exit(),
            remedy: error.remedy(),
            error: error.into(),
        }
    }
}

impl From<broker_client::Error> for Failure {
    fn from(error: broker_client::Error) -> Self {
        let exit = match error.root() {
            broker_client::Error::InvalidConfig { .. }
            | broker_client::Error::UnknownTopic { .. }
            | broker_client::Error::UnknownPartition { .. } => Exit::Usage,
            broker_client::Error::CorruptBatch { .. }
            | broker_client::Error::BatchTooLarge { .. }
            | broker_client::Error::RecordTooLarge { .. } => Exit::Data,
            broker_client::Error::OffsetOutOfRange { .. } => Exit::OffsetsGone,
            broker_client::Error::Kafka { code, .. } if !code.retriable() => Exit::Usage,
            _ => Exit::Unavailable,
        };
        let remedy = match error.root() {
            broker_client::Error::Kafka { code, .. } if !code.retriable() => None,
            _ => Some(error.remedy().to_owned()),
        };
        Self {
            exit,
            remedy,
            error: error.into(),
        }
    }
}

impl From<loader_store::Error> for Failure {
    fn from(error: loader_store::Error) -> Self {
        loader_pipeline::error::Error::from(error).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self {
            exit: Exit::Failed,
            remedy: None,
            error: error.into(),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self {
            exit: Exit::Failed,
            remedy: None,
            error: error.into(),
        }
    }
}

/// Several datasets: the first that applies of 1, 69, 66, 65, 75, 76 (2 and 143 before all).
#[derive(Debug, Default)]
pub struct Worst {
    failure: Option<Failure>,
    exit: Option<Exit>,
    reported: Vec<String>,
}

const fn rank(exit: Exit) -> u8 {
    match exit {
        Exit::Stopped => 0,
        Exit::Usage => 1,
        Exit::Failed => 2,
        Exit::Unavailable => 3,
        Exit::OffsetsGone => 4,
        Exit::Data => 5,
        Exit::Fenced => 6,
        Exit::Partial => 7,
    }
}

impl Worst {
    /// Takes the outcome of one dataset.
    pub fn add(&mut self, result: Result<Option<Exit>, Failure>) {
        let failure = match result {
            Ok(None) => return,
            Ok(Some(exit)) => {
                if self.exit.is_none_or(|known| rank(exit) < rank(known)) {
                    self.exit = Some(exit);
                }
                return;
            }
            Err(failure) => failure,
        };
        match &mut self.failure {
            Some(known) if rank(known.exit()) <= rank(failure.exit()) => {
                self.reported.push(failure.report());
            }
            known => {
                if let Some(milder) = known.replace(failure) {
                    self.reported.push(milder.report());
                }
            }
        }
    }

    #[expect(
        clippy::print_stderr,
        reason = "the failures of the other datasets; the worst is returned"
    )]
    /// The outcome of all; failures but the worst are reported at once.
    ///
    /// # Errors
    /// The worst failure.
    pub fn outcome(self) -> Outcome {
        for report in &self.reported {
            eprint!("{report}");
        }
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self.exit),
        }
    }
}
