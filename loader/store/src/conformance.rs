//! What every [`Store`] must do, as functions that a test of each implementation runs.
//!
//! A property gets a fresh directory of its own and leaves its files there. They run one after
//! another or side by side, in an existing directory that nobody else uses:
//!
//! ```no_run
//! # async fn example() -> loader_store::Result<()> {
//! let (store, root) = loader_store::open("/tmp/some-new-folder", &Default::default()).await?;
//! for (name, property) in loader_store::conformance::all() {
//!     loader_store::conformance::run_one(&*store, &root, name, property).await;
//! }
//! # Ok(()) }
//! ```

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::{Entry, Error, Result, Store, StorePath};

mod directories;
mod files;
mod renames;

/// One property: panics unless `store` has it. The directory is there and empty.
pub type Property = for<'a> fn(&'a dyn Store, &'a StorePath) -> BoxFuture<'a, ()>;

macro_rules! properties {
    ($($module:ident: $($name:ident)*;)*) => {
        vec![$($((
            stringify!($name),
            (|store, directory| Box::pin($module::$name(store, directory))) as Property,
        )),*),*]
    };
}

/// All properties with their names.
#[must_use]
pub fn all() -> Vec<(&'static str, Property)> {
    properties! {
        files: what_is_written_reads_back
            create_never_overwrites
            of_sixteen_creators_exactly_one_wins
            create_and_put_make_no_parents
            nothing_is_made_below_a_file
            what_lies_below_a_file_is_missing
            an_empty_file_is_a_file
            twenty_megabytes_in_odd_pieces_read_back
            read_range_is_cut_at_the_end
            reading_what_is_no_file_fails
            replace_overwrites_and_makes_no_parents
            a_dropped_writer_leaves_the_name_taken
            the_writer_of_a_deleted_file_fails_to_close
            names_longer_than_255_bytes_are_refused;
        directories: mkdir_makes_one_level_once
            mkdirs_makes_parents_and_repeats
            stat_tells_kind_length_and_time
            list_is_sorted_and_complete
            odd_names_are_names
            two_thousand_entries_are_listed
            listing_what_is_no_directory_fails
            delete_removes_files_and_trees
            deleting_nothing_says_so
            the_root_is_not_deleted;
        renames: rename_moves_a_file
            rename_moves_a_whole_tree
            rename_never_overwrites
            rename_needs_the_targets_parent
            rename_needs_a_source
            nothing_is_renamed_below_itself
            of_sixteen_renames_to_one_target_exactly_one_wins
            of_sixteen_renames_of_one_source_exactly_one_wins
            sixteen_equal_renames_succeed_once
            an_open_file_follows_its_directory
            a_renamed_directory_fences_its_old_path
            rename_keeps_the_time;
    }
}

/// Runs one property in the new directory `root/name`.
///
/// # Panics
/// If `store` lacks the property, or the directory cannot be made.
pub async fn run_one(store: &dyn Store, root: &StorePath, name: &str, property: Property) {
    let directory = root.join(name);
    must(
        "make the property's directory",
        store.mkdir(&directory).await,
    );
    property(store, &directory).await;
}

/// Runs all properties, one after another, in directories below `root`, which is made.
///
/// # Panics
/// At the first property that `store` lacks.
pub async fn run(store: &dyn Store, root: &StorePath) {
    must("make the root", store.mkdirs(root).await);
    for (name, property) in all() {
        run_one(store, root, name, property).await;
    }
}

/// Asserts that a result is the given error.
macro_rules! assert_error {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {{
        let result = $result;
        assert!(
            matches!(&result, Err($pattern) $(if $guard)?),
            "wanted {}, got {result:?}",
            stringify!($pattern)
        );
    }};
}
use assert_error;

#[expect(
    clippy::panic,
    reason = "a property that does not hold fails the test that runs it"
)]
fn must<T>(what: &str, result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("cannot {what}: {error:?}"),
    }
}

async fn put(store: &dyn Store, file: &StorePath, content: &'static str) {
    must(
        "put",
        store
            .put(file, Bytes::from_static(content.as_bytes()))
            .await,
    );
}

async fn mkdir(store: &dyn Store, directory: &StorePath) {
    must("mkdir", store.mkdir(directory).await);
}

async fn rename(store: &dyn Store, from: &StorePath, to: &StorePath) {
    must("rename", store.rename_no_overwrite(from, to).await);
}

async fn stat(store: &dyn Store, path: &StorePath) -> Option<Entry> {
    must("stat", store.stat(path).await)
}

async fn is_there(store: &dyn Store, path: &StorePath) -> bool {
    stat(store, path).await.is_some()
}

async fn holds(store: &dyn Store, file: &StorePath, content: &str) {
    let read = must("read", store.read(file).await);
    assert_eq!(read, content.as_bytes(), "{file}");
}

async fn names(store: &dyn Store, directory: &StorePath) -> Vec<String> {
    let entries = must("list", store.list(directory).await);
    entries
        .iter()
        .map(|entry| entry.name().to_owned())
        .collect()
}

/// How many of the results are `Ok`; the errors of the others must satisfy `loses`.
fn winners<T>(results: &[Result<T>], loses: impl Fn(&Error) -> bool) -> usize {
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert!(loses(error), "a loser got {error:?}");
    }
    results.iter().filter(|result| result.is_ok()).count()
}
