//! `CreatePartitions` 0–3: a topic grows; records stay where they are.

use std::{collections::HashSet, sync::Arc};

use broker_protocol::{
    ErrorCode,
    messages::{
        CreatePartitionsRequest, CreatePartitionsResponse,
        create_partitions::{CreatePartitionsTopic, CreatePartitionsTopicResult},
    },
};

use super::Context;
use crate::pool::Failed;

pub(super) async fn handle(
    context: &Context<'_>,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let mut seen = HashSet::new();
    let mut results = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let grown = if seen.insert(topic.name.clone()) {
            grow(context, &topic, request.validate_only).await
        } else {
            Err((ErrorCode::InvalidRequest, "duplicate topic name".to_owned()))
        };
        let answer = CreatePartitionsTopicResult {
            name: topic.name,
            error_message: None,
            ..CreatePartitionsTopicResult::default()
        };
        results.push(match grown {
            Ok(()) => answer,
            Err((code, message)) => CreatePartitionsTopicResult {
                error_code: code.code(),
                error_message: Some(message.into()),
                ..answer
            },
        });
    }
    CreatePartitionsResponse {
        results,
        ..CreatePartitionsResponse::default()
    }
}

async fn grow(
    context: &Context<'_>,
    topic: &CreatePartitionsTopic,
    validate_only: bool,
) -> Result<(), (ErrorCode, String)> {
    let Some(total) = usize::try_from(topic.count).ok().filter(|total| *total > 0) else {
        let message = format!("number of partitions {} is not above 0", topic.count);
        return Err((ErrorCode::InvalidPartitions, message));
    };
    let refused = |error: crate::topics::ChangeError| (error.error_code(), error.to_string());
    let current = context
        .broker
        .topics
        .check_grow(&topic.name, total)
        .map_err(refused)?;
    if current.is_internal() {
        let message =
            "the broker's own topics do not grow: groups would be looked for in other partitions";
        return Err((ErrorCode::InvalidPartitions, message.to_owned()));
    }
    if let Some(assignments) = &topic.assignments {
        let node_id = context.broker.config.node_id;
        let fits = assignments.len() == total - current.partitions.len()
            && assignments
                .iter()
                .all(|assignment| assignment.broker_ids == [node_id]);
        if !fits {
            let message = format!("each new partition must be assigned to node {node_id} alone");
            return Err((ErrorCode::InvalidReplicaAssignment, message));
        }
    }
    if validate_only {
        return Ok(());
    }
    let broker = Arc::clone(context.broker);
    let name = topic.name.clone();
    match context
        .broker
        .pool
        .run(move || broker.topics.grow(&name, total))
        .await
    {
        Ok(grown) => grown.map_err(refused),
        Err(Failed) => {
            let message = "the change failed inside the broker".to_owned();
            Err((ErrorCode::KafkaStorageError, message))
        }
    }
}
