//! Publishing: `rename(out-N, run=N)`, and nothing else makes a run visible.
//!
//! ```text
//! rename ──► Ok ───────────────────────────────────────────────► published
//!    ├─────► target exists: ours ─────────────────────────────► published (the answer had been lost)
//!    │                      another's, our starts still stand ► rebase onto it, rename again
//!    │                      another's, our starts moved ──────► fenced (75)
//!    ├─────► source gone: our uuid in a newer manifest ───────► published;  else fenced (75)
//!    └─────► no answer: one acknowledged write in staging, then look as above;
//!            source still there and target free ──────────────► the same rename again
//! ```

use bytes::Bytes;

use super::Place;
use super::assemble::{Selection, assemble, compose};
use super::newest::{is_there, newest, read_manifest, run_numbers, write_last};
use super::staging::Staging;
use super::steps;
use crate::error::Error;
use crate::failpoint::failpoint;
use crate::layout::RunNumber;
use crate::manifest::Manifest;
use crate::plan::Plan;
use crate::schema::{SchemaChange, check_change};

/// Renames of one publish before it gives up; each but the last met another run or lost its answer.
const MAX_RENAMES: u32 = 100;
/// Pause before a rename that did not happen is repeated, longer each time.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Assembles and publishes what was selected, rebasing as often as other runs come first.
///
/// `base` is the newest manifest as last read. Cancel safety: dropping the future leaves either nothing
/// or a whole run published; which of them, only a look at the dataset tells.
///
/// # Errors
/// [`Error::Fenced`] or [`Error::Moved`] when another run took this one's place (nothing was published).
pub async fn publish(
    place: &Place,
    staging: &Staging,
    plan: &Plan,
    selection: &Selection,
    base: Option<Manifest>,
) -> Result<Manifest, Error> {
    let mut publisher = Publisher {
        place,
        staging,
        plan,
        selection,
    };
    let manifest = publisher.run(base).await?;
    failpoint!("publish.after");
    write_last(place, manifest.number).await;
    failpoint!("publish.last_written");
    write_claims(place, &manifest).await;
    Ok(manifest)
}

struct Publisher<'a> {
    place: &'a Place,
    staging: &'a Staging,
    plan: &'a Plan,
    selection: &'a Selection,
}

/// What one rename came to.
enum Outcome {
    Published(RunNumber),
    /// Another run has the number: go on from the newest.
    Taken,
    /// It did not happen and may be tried again.
    Again,
}

impl Publisher<'_> {
    async fn run(&mut self, mut base: Option<Manifest>) -> Result<Manifest, Error> {
        let mut manifest = self.prepare(base.as_ref()).await?;
        for round in 0..MAX_RENAMES {
            match self.rename(&manifest).await? {
                Outcome::Published(number) if number == manifest.number => return Ok(manifest),
                Outcome::Published(number) => return read_manifest(self.place, number).await,
                Outcome::Again => tokio::time::sleep(PAUSE * round.min(20)).await,
                Outcome::Taken => {
                    base = newest(self.place).await?;
                    tracing::info!(number = %manifest.number, "another run came first, rebasing");
                    manifest = self.prepare(base.as_ref()).await?;
                }
            }
        }
        Err(Error::Fenced {
            what: format!("{MAX_RENAMES} renames met another run or lost their answer"),
        })
    }

    /// Checks that the plan continues `base`, and assembles the run on top of it.
    async fn prepare(&self, base: Option<&Manifest>) -> Result<Manifest, Error> {
        if let Err(moved) = self.plan.continues(base) {
            let number = base.map_or(RunNumber(0), |manifest| manifest.number);
            return Err(Error::Moved { number, moved });
        }
        let schema_moved = base.is_some_and(|manifest| {
            self.plan.base != Some(manifest.run_ref()) && self.undoes_columns_of(manifest)
        });
        if schema_moved {
            return Err(Error::Fenced {
                what: "another run changed the columns".to_owned(),
            });
        }
        let manifest = compose(self.plan, self.selection, self.staging.run(), base);
        assemble(self.place, self.staging, self.selection, &manifest).await?;
        Ok(manifest)
    }

    /// Whether publishing this plan's columns on top of another run would drop or retype what it added.
    fn undoes_columns_of(&self, manifest: &Manifest) -> bool {
        match check_change(&manifest.schema, &self.plan.schema) {
            Ok(changes) => changes
                .iter()
                .any(|c| matches!(c, SchemaChange::Dropped { .. })),
            Err(_) => true,
        }
    }

    async fn rename(&self, manifest: &Manifest) -> Result<Outcome, Error> {
        let number = manifest.number;
        let (out, target) = (
            self.staging.paths().out(number),
            self.place.layout.run(number),
        );
        failpoint!("publish.before");
        let refused = match self.place.store.rename_no_overwrite(&out, &target).await {
            Ok(()) => return Ok(Outcome::Published(number)),
            Err(error) => error,
        };
        match refused {
            loader_store::Error::AlreadyExists { .. } => self.look_at_target(number).await,
            loader_store::Error::NotFound { .. } => self.look_for_ours().await,
            ref error if error.kind() == loader_store::ErrorKind::Ambiguous => {
                tracing::warn!(%error, "no answer to the publishing rename, looking what happened");
                self.settle(number).await.map_err(|error| match error {
                    Error::Store(source) => Error::PublishUnknown { number, source },
                    other => other,
                })
            }
            other => Err(other.into()),
        }
    }

    /// After a lost answer: an acknowledged write orders our look behind whatever the rename did.
    async fn settle(&self, number: RunNumber) -> Result<Outcome, Error> {
        let directory = self.staging.paths().directory();
        match steps::make_fresh_directory(&*self.place.store, directory, "settle-").await {
            Err(loader_store::Error::ParentMissing { .. }) => return self.look_for_ours().await,
            made => made?,
        }
        failpoint!("publish.settled");
        if is_there(self.place, &self.place.layout.run(number)).await? {
            return self.look_at_target(number).await;
        }
        if is_there(self.place, &self.staging.paths().out(number)).await? {
            return Ok(Outcome::Again);
        }
        self.look_for_ours().await
    }

    async fn look_at_target(&self, number: RunNumber) -> Result<Outcome, Error> {
        let theirs = read_manifest(self.place, number).await?;
        Ok(if theirs.uuid == self.staging.run() {
            Outcome::Published(number)
        } else {
            Outcome::Taken
        })
    }

    /// The source of the rename is gone: published under some number, or taken over by another driver.
    async fn look_for_ours(&self) -> Result<Outcome, Error> {
        let base = self.plan.base.map_or(RunNumber(0), |base| base.number);
        for number in run_numbers(self.place).await?.into_iter().rev() {
            if number <= base {
                break;
            }
            if read_manifest(self.place, number).await?.uuid == self.staging.run() {
                return Ok(Outcome::Published(number));
            }
        }
        Err(self.staging.gone())
    }
}

/// Copies the claims of a published run to `.logferry/complete/<hour>/<run>` for schedulers. Advisory: the
/// manifest holds them.
pub(crate) async fn write_claims(place: &Place, manifest: &Manifest) {
    for claim in &manifest.complete_hours {
        let directory = place.layout.complete().join(&claim.directory);
        let file = directory.join(&manifest.number.to_string());
        let written = async {
            place.store.mkdirs(&directory).await?;
            place.store.put(&file, Bytes::from_static(b"\n")).await
        };
        match written.await {
            Ok(()) | Err(loader_store::Error::AlreadyExists { .. }) => {}
            Err(error) => tracing::warn!(%error, hour = claim.directory, "cannot copy a claim out"),
        }
    }
}
