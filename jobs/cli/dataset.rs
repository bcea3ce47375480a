//! Which datasets a command looks at: those of a job file, or one by its location.

use std::path::PathBuf;

use clap::Args;
use loader_pipeline::commit::Place;
use loader_pipeline::layout::Layout;
use loader_pipeline::load::open_place;

use super::load;
use crate::config;
use crate::failure::Failure;

/// The arguments.
#[derive(Debug, Args)]
pub(super) struct Datasets {
    /// Job file whose datasets are meant.
    #[arg(required_unless_present = "dataset")]
    job: Option<PathBuf>,
    /// A dataset by its location, instead of a job file.
    #[arg(long, conflicts_with = "job")]
    dataset: Option<String>,
}

impl Datasets {
    /// Each dataset's location as it was given, and its place.
    pub(super) async fn places(&self) -> Result<Vec<(String, Place)>, Failure> {
        if let Some(location) = &self.dataset {
            let config = loader_store::StoreConfig::default();
            let (store, root) = loader_store::open(location, &config).await?;
            let layout = Layout::new(root);
            return Ok(vec![(location.clone(), Place { store, layout })]);
        }
        let Some(job) = &self.job else {
            return Ok(Vec::new());
        };
        let job = config::read_job(job)?;
        let mut places = Vec::new();
        for (location, _) in load::datasets(&job)? {
            let place = open_place(&job, &location).await?;
            places.push((location, place));
        }
        Ok(places)
    }
}
