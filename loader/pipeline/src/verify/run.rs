//! One run's directory against its manifest: the exact set of names, lengths, and what the files hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use loader_store::StorePath;

use super::files::{Columns, check_file};
use super::offsets::OffsetAudit;
use super::{Audit, Problem};
use crate::commit::assemble::{Tree, list_files};
use crate::commit::prune::PrunedRun;
use crate::error::Error;
use crate::layout::{MANIFEST, PRUNED, SUCCESS};
use crate::manifest::{Manifest, PublishedFile};

/// How often a run is looked at whose directories vanish meanwhile.
const LOOKS: u32 = 100;

impl Audit<'_> {
    /// Everything in a run. A prune beside us may take directories away while they are listed.
    async fn tree(&self, directory: &StorePath) -> Result<Tree, Error> {
        for _ in 1..LOOKS {
            match list_files(self.place, directory).await {
                Err(Error::Store(loader_store::Error::NotFound { .. })) => {}
                listed => return listed,
            }
        }
        list_files(self.place, directory).await
    }

    /// The files of one run, or that a pruned run has none.
    pub(super) async fn check_run(&mut self, manifest: &Manifest) -> Result<(), Error> {
        let directory = self.place.layout.run(manifest.number);
        let mut tree = self.tree(&directory).await?;
        if !tree.files.contains_key(PRUNED) {
            let (files, problems) = (self.report.files, self.report.problems.len());
            self.check_files(manifest, &directory, &tree).await?;
            if self.report.problems.len() == problems {
                return Ok(());
            }
            tree = self.tree(&directory).await?;
            if !tree.files.contains_key(PRUNED) {
                return Ok(());
            }
            // Pruned while it was looked at: then what is missing is no damage.
            self.report.files = files;
            self.report.problems.truncate(problems);
        }
        self.check_pruned(manifest, &directory, &tree).await
    }

    /// A pruned run holds its documents and nothing else.
    async fn check_pruned(
        &mut self,
        manifest: &Manifest,
        directory: &StorePath,
        tree: &Tree,
    ) -> Result<(), Error> {
        self.report.pruned_runs += 1;
        if let Err(error) = PrunedRun::read(self.place, manifest).await {
            self.add_error(error)?;
        }
        self.check_documents(directory, tree);
        for path in tree.files.keys().chain(&tree.directories) {
            if ![MANIFEST, SUCCESS, PRUNED].contains(&path.as_str()) {
                let left =
                    "is left in a run that was pruned; `logferry prune` finishes what it began";
                self.add(&directory.join(path), left);
            }
        }
        Ok(())
    }

    fn check_documents(&mut self, directory: &StorePath, tree: &Tree) {
        match tree.files.get(SUCCESS) {
            Some(0) => {}
            Some(bytes) => self.add(
                &directory.join(SUCCESS),
                format!("has {bytes} bytes, it is to be empty"),
            ),
            None => self.add(&directory.join(SUCCESS), "is missing"),
        }
    }

    /// Names and lengths, then what the files hold.
    async fn check_files(
        &mut self,
        manifest: &Manifest,
        directory: &StorePath,
        tree: &Tree,
    ) -> Result<(), Error> {
        self.check_documents(directory, tree);
        self.check_strangers(manifest, directory, tree);
        self.report.files += manifest.files.len();
        let mut present = Vec::new();
        for file in &manifest.files {
            // A path that leads elsewhere is the manifest's problem.
            let Ok(path) = directory.try_join(&file.path) else {
                continue;
            };
            match tree.files.get(&file.path) {
                None => self.add(&path, "is in the manifest and not there"),
                Some(length) if *length != file.bytes => {
                    let problem = self.wrong_length(&path, file, *length).await?;
                    self.add(&path, problem);
                }
                Some(_) => present.push((path, file)),
            }
        }
        if self.options.without_data {
            return Ok(());
        }
        let all_there = present.len() == manifest.files.len();
        self.check_contents(manifest, directory, present, all_there)
            .await
    }

    async fn wrong_length(
        &self,
        path: &StorePath,
        file: &PublishedFile,
        length: u64,
    ) -> Result<String, Error> {
        let followed = self.place.store.stat(path).await?;
        if followed.is_some_and(|entry| entry.len != length) {
            return Ok("is a link, not a file".to_owned());
        }
        Ok(format!(
            "has {length} bytes, the manifest says {}",
            file.bytes
        ))
    }

    /// What lies there and is not in the manifest.
    fn check_strangers(&mut self, manifest: &Manifest, directory: &StorePath, tree: &Tree) {
        let mut directories = BTreeSet::new();
        let mut files = BTreeSet::from([MANIFEST, SUCCESS]);
        for file in &manifest.files {
            files.insert(file.path.as_str());
            for (at, _) in file.path.match_indices('/') {
                directories.extend(file.path.get(..at));
            }
        }
        let strange = |found: &String, known: &BTreeSet<&str>| !known.contains(found.as_str());
        let found = tree.files.keys().filter(|path| strange(path, &files));
        let found = found.chain(
            tree.directories
                .iter()
                .filter(|path| strange(path, &directories)),
        );
        for path in found {
            self.add(&directory.join(path), "is not in the manifest");
        }
    }

    async fn check_contents(
        &mut self,
        manifest: &Manifest,
        directory: &StorePath,
        present: Vec<(StorePath, &PublishedFile)>,
        all_there: bool,
    ) -> Result<(), Error> {
        let offsets = manifest.schema.coordinates;
        let audit = Arc::new(OffsetAudit::new(manifest));
        let columns = Arc::new(Columns::of(&manifest.schema));
        let checks = present.into_iter().map(|(path, file)| {
            let audit = offsets.then(|| Arc::clone(&audit));
            check_file(self.place, path, file.clone(), Arc::clone(&columns), audit)
        });
        let mut files = futures::stream::iter(checks).buffer_unordered(self.options.threads.max(1));
        let mut problems: BTreeMap<String, Vec<Problem>> = BTreeMap::new();
        while let Some(found) = files.try_next().await? {
            for problem in found {
                let of_file = problems.entry(problem.path.clone()).or_default();
                of_file.push(problem);
            }
        }
        drop(files);
        self.report
            .problems
            .extend(problems.into_values().flatten());
        self.report.offsets_proved &= offsets;
        if offsets && all_there {
            let uri = self.place.store.uri(directory);
            self.report.problems.extend(audit.finish(&uri));
        }
        Ok(())
    }
}
