//! `OffsetDelete` 0: forgets a group's offsets of partitions that its members have not subscribed to.

use broker_protocol::{
    ErrorCode,
    messages::{
        OffsetDeleteRequest, OffsetDeleteResponse,
        offset_delete::{OffsetDeleteResponsePartition, OffsetDeleteResponseTopic},
    },
};

use super::Context;

pub(super) async fn handle(
    context: &Context<'_>,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let refuse = |code: ErrorCode| OffsetDeleteResponse {
        error_code: code.code(),
        ..OffsetDeleteResponse::default()
    };
    let groups = &context.broker.groups;
    let subscribed = match groups.check_delete_offsets(&request.group_id) {
        Ok(subscribed) => subscribed,
        Err(code) => return refuse(code),
    };
    let mut offsets = Vec::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let known = context.broker.topics.get(&topic.name);
        let partitions = topic.partitions.iter().map(|partition| {
            let index = partition.partition_index;
            let there = known.as_ref().map(|known| known.partition(index));
            let code = match there {
                None | Some(Err(ErrorCode::UnknownTopicOrPartition)) => {
                    ErrorCode::UnknownTopicOrPartition
                }
                Some(_) if subscribed.contains(&topic.name) => ErrorCode::GroupSubscribedToTopic,
                Some(_) => {
                    offsets.push((topic.name.clone(), index));
                    ErrorCode::None
                }
            };
            OffsetDeleteResponsePartition {
                partition_index: index,
                error_code: code.code(),
            }
        });
        topics.push(OffsetDeleteResponseTopic {
            partitions: partitions.collect(),
            name: topic.name,
        });
    }
    match groups.delete_offsets(&request.group_id, &offsets).await {
        Ok(()) => OffsetDeleteResponse {
            topics,
            ..OffsetDeleteResponse::default()
        },
        Err(code) => refuse(code),
    }
}
