//! Actors: a state in a worker of its own, which is called from anywhere, and the traces of that.

use serde_json::json;

use crate::support::{Cluster, HOOK};

const CREATED: &str = "Counter.new tracer.remote";
const MADE: &str = "Counter.new tracer.remote_worker";
const CALLED: &str = "Counter.increment tracer.remote";
const RUN: &str = "Counter.increment tracer.remote_worker";

#[test]
fn the_example_counts_for_whoever_knows_its_name_or_has_its_handle() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let id = cluster.tracer(&["submit", "actor", "counter:Counter", "40", "--name", "hits"]).success().json();
    assert_eq!(cluster.tracer(&["submit", "call", "hits", "increment", "2"]).success().json(), json!(42));
    assert_eq!(cluster.tracer(&["submit", "call", &id.to_string(), "get"]).success().json(), json!(42));
    let run = cluster.submit("counter:count_words", &[r#"["to be or", "not to be"]"#, "\"hits\""]).success();
    assert_eq!(run.json(), json!(48));

    let spans = cluster.spans();
    spans.assert_whole(&[]);
    for (submitted, run) in [(CREATED, MADE), (CALLED, RUN)] {
        for run in spans.all_named(run) {
            let producer = spans.parent_of(run);
            assert_eq!(
                (producer.name(), producer.kind(), run.kind()),
                (submitted, "SpanKind.PRODUCER", "SpanKind.CONSUMER")
            );
            for span in [producer, run] {
                assert_eq!(span.attribute("tracer.actor_id"), &id);
                assert_eq!(span.attribute("tracer.remote"), "actor");
            }
        }
    }
    assert_eq!((spans.all_named(MADE).len(), spans.all_named(RUN).len()), (1, 3));
}
