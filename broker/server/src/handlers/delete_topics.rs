//! `DeleteTopics` 1–6: by name, from 6 also by id. The records are gone for good when it is answered.

use std::sync::Arc;

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        DeleteTopicsRequest, DeleteTopicsResponse,
        delete_topics::{DeletableTopicResult, DeleteTopicState},
    },
};
use uuid::Uuid;

use super::Context;
use crate::{pool::Failed, topics::ChangeError};

/// First version that has topics as pairs of name and id.
const BY_ID: i16 = 6;

pub(super) async fn handle(
    context: &Context<'_>,
    version: i16,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let topics = if version >= BY_ID {
        request.topics
    } else {
        let named = |name: ByteString| DeleteTopicState {
            name: Some(name),
            topic_id: Uuid::nil(),
        };
        request.topic_names.into_iter().map(named).collect()
    };
    let mut responses = Vec::with_capacity(topics.len());
    for topic in topics {
        let deleted = delete(context, &topic).await;
        let answer = DeletableTopicResult {
            name: topic.name,
            topic_id: topic.topic_id,
            error_message: None,
            ..DeletableTopicResult::default()
        };
        responses.push(match deleted {
            Ok((name, topic_id)) => DeletableTopicResult {
                name: Some(name),
                topic_id,
                ..answer
            },
            Err((code, message)) => DeletableTopicResult {
                error_code: code.code(),
                error_message: Some(message.into()),
                ..answer
            },
        });
    }
    DeleteTopicsResponse {
        responses,
        ..DeleteTopicsResponse::default()
    }
}

async fn delete(
    context: &Context<'_>,
    wanted: &DeleteTopicState,
) -> Result<(ByteString, Uuid), (ErrorCode, String)> {
    let topics = &context.broker.topics;
    let found = match (&wanted.name, wanted.topic_id) {
        (Some(_), id) if !id.is_nil() => {
            let message = "a topic is deleted by its name or its id, not both".to_owned();
            return Err((ErrorCode::InvalidRequest, message));
        }
        (Some(name), _) => topics.get(name).ok_or(ErrorCode::UnknownTopicOrPartition),
        (None, id) => topics.by_id(id).ok_or(ErrorCode::UnknownTopicId),
    };
    let topic = found.map_err(|code| (code, "no such topic".to_owned()))?;
    let (name, topic_id) = (topic.name.clone(), topic.topic_id);
    if topic.is_internal() {
        let message = "the broker's own topics are not deleted".to_owned();
        return Err((ErrorCode::InvalidRequest, message));
    }
    let broker = Arc::clone(context.broker);
    let delete = move || {
        broker.topics.delete(name.as_str())?;
        broker.groups.forget_topic(name.as_str());
        Ok::<_, ChangeError>(())
    };
    let deleted = context.broker.pool.run(delete).await;
    match deleted {
        Ok(Ok(())) => Ok((ByteString::from(topic.name.clone()), topic_id)),
        Ok(Err(error)) => Err((error.error_code(), error.to_string())),
        Err(Failed) => {
            let message = "the change failed inside the broker".to_owned();
            Err((ErrorCode::KafkaStorageError, message))
        }
    }
}
