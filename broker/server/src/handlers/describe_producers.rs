//! `DescribeProducers` 0: who wrote to a partition under a producer id and has not been forgotten yet.
//!
//! There are no transactions, so none is open and no coordinator is known (−1).

use broker_log::ActiveProducer;
use broker_protocol::{
    ErrorCode, TopicName,
    messages::{
        DescribeProducersRequest, DescribeProducersResponse,
        describe_producers::{PartitionResponse, ProducerState, TopicResponse},
    },
};

use super::Context;

pub(super) fn handle(
    context: &Context<'_>,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let topics = request.topics.into_iter().map(|topic| {
        let named = TopicName::try_from(topic.name.clone());
        let partitions = topic.partition_indexes.iter().map(|&partition_index| {
            let answer = PartitionResponse {
                partition_index,
                ..PartitionResponse::default()
            };
            let producers = match &named {
                Ok(name) => producers(context, name, partition_index),
                Err(error) => Err((ErrorCode::InvalidTopicException, error.to_string())),
            };
            match producers {
                Ok(producers) => PartitionResponse {
                    active_producers: producers.into_iter().map(state).collect(),
                    ..answer
                },
                Err((code, message)) => PartitionResponse {
                    error_code: code.code(),
                    error_message: Some(message.into()),
                    ..answer
                },
            }
        });
        TopicResponse {
            partitions: partitions.collect(),
            name: topic.name,
        }
    });
    DescribeProducersResponse {
        topics: topics.collect(),
        ..DescribeProducersResponse::default()
    }
}

fn producers(
    context: &Context<'_>,
    topic: &TopicName,
    index: i32,
) -> Result<Vec<ActiveProducer>, (ErrorCode, String)> {
    let partition = context
        .broker
        .topics
        .partition(topic.as_str(), index)
        .map_err(|code| (code, "no such partition here".to_owned()))?;
    let producers = partition.with_log(|log| Ok(log.active_producers()));
    producers.map_err(|error| (error.error_code(), error.message()))
}

fn state(producer: ActiveProducer) -> ProducerState {
    ProducerState {
        producer_id: producer.producer_id,
        producer_epoch: i32::from(producer.producer_epoch),
        last_sequence: producer.last_sequence.unwrap_or(-1),
        last_timestamp: producer.last_timestamp_ms,
        coordinator_epoch: -1,
        current_txn_start_offset: -1,
    }
}
