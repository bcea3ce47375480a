//! The way everything leaves a dataset: renamed into the trash, so that nobody can go on with it, then deleted.

use loader_store::StorePath;
use uuid::Uuid;

use super::Place;
use crate::failpoint::failpoint;

/// Throws a directory away. Errors are logged: the next run tries again.
pub(super) async fn discard(place: &Place, directory: &StorePath) {
    if let Err(error) = throw_away(place, directory).await {
        tracing::warn!(%error, path = %directory, "cannot move to the trash");
    }
}

/// Renames a file or directory into the trash, then deletes it (an error there is logged: the next run
/// tries again). One that is not there any more is fine.
pub(super) async fn throw_away(place: &Place, path: &StorePath) -> loader_store::Result<()> {
    let trash = place.layout.trash().join(&Uuid::new_v4().to_string());
    match place.store.rename_no_overwrite(path, &trash).await {
        Err(loader_store::Error::NotFound { .. }) => return Ok(()),
        renamed => renamed?,
    }
    failpoint!("trash.renamed");
    delete_or_leave(place, &trash).await;
    Ok(())
}

/// Deletes what nobody needs. Errors are logged: the next run tries again.
pub(super) async fn delete_or_leave(place: &Place, path: &StorePath) {
    if let Err(error) = place.store.delete(path).await {
        tracing::warn!(%error, %path, "cannot delete, the next run will");
    }
}

/// Deletes what is in the trash. All of it is fenced already, so nobody can still need it.
pub(super) async fn empty_trash(place: &Place) {
    let entries = match place.store.list(&place.layout.trash()).await {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, "cannot look into the trash");
            return;
        }
    };
    for entry in entries {
        delete_or_leave(place, &entry.path).await;
    }
}
