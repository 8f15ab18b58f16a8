//! The description of a process's tracing, and the defaults for what a hook does not say.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{
    BatchConfigBuilder, BatchLogProcessor, LogExporter, LoggerProviderBuilder, SdkLoggerProvider,
};
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, IdGenerator, RandomIdGenerator, Sampler, SdkTracerProvider, ShouldSample, SimpleSpanProcessor,
    SpanExporter, SpanLimits, SpanProcessor, TracerProviderBuilder,
};
use tracer_otel_env::{Reader, Root};

use super::delivery::{Delivery, FanOut, Flusher, SharedExporter, SinkTarget, ToldExporter};
use super::direct::Direct;
use super::given_up::{CountedLogExporter, CountedLogProcessor, GivenUpLogRecords};
use super::guard::{DurableProcessor, GuardedProcessor, Kind, SharedProcessor};
use super::limits::{Lengths, SaidLimits, ShorteningProcessor};
use super::pause::SharedPause;

/// The environment variable with which `tracer` hands its configured sampling ratio to the processes it starts: a number from
/// 0 to 1. Neither a hook's own sampler nor `OTEL_TRACES_SAMPLER` is overruled by it.
pub const SAMPLING_RATIO_VARIABLE: &str = "TRACER_TRACING_SAMPLING_RATIO";

/// The environment variable with which `tracer` hands the name of a service to the proxy and the replicas of it: their
/// `service.name` when neither the hook nor the environment names one.
pub const SERVICE_VARIABLE: &str = "TRACER_SERVICE";

/// Log records that may wait for an exporter, unless `OTEL_BLRP_MAX_QUEUE_SIZE` says otherwise.
const LOG_QUEUE_SIZE: usize = 65536;
/// The SDK's own number of them, where that variable is no number.
const SDK_LOG_QUEUE_SIZE: usize = 2048;

/// Tracing of a process, which a hook returns. Made by [`Tracing::builder`], or from a finished [`SdkTracerProvider`].
///
/// It is a value; nothing happens with it before the host uses it. Dropping it ends the provider in it.
#[derive(Debug)]
pub struct Tracing {
    pub(super) provider: SdkTracerProvider,
    /// The provider's processors; empty for a provider that the hook finished.
    pub(super) processors: Vec<Arc<GuardedProcessor>>,
    /// Delivery, which tells the host's listener about spans.
    pub(super) delivery: Arc<Delivery>,
    /// Called when the shutdown begins.
    pub(super) notices: Vec<Notice>,
    /// `None` for a provider that the hook finished: it does not tell.
    pub(super) resource: Option<Resource>,
    pub(super) description: String,
    /// A span whose parent is not sampled is certain to be dropped, without asking the sampler.
    pub(super) follows_parent: bool,
    /// True if trace ids are the SDK's random ones, and not a generator's of the hook.
    pub(super) has_random_ids: bool,
    /// Direct rendering of spans without the provider, if nobody could tell.
    pub(super) direct: Option<Direct>,
    /// True if the sampler or a processor may add something to a span that starts.
    pub(super) may_add: bool,
    /// Delivery of log records, if somebody is to have them.
    pub(super) logs: Option<SdkLoggerProvider>,
}

impl Tracing {
    /// Begins a description.
    pub fn builder() -> TracingBuilder {
        TracingBuilder {
            provider: SdkTracerProvider::builder(),
            sampler: None,
            has_id_generator: false,
            limits: SaidLimits::default(),
            resources: Vec::new(),
            processors: Vec::new(),
            log_processors: Vec::new(),
            given_up_log_records: Vec::new(),
            delivery: Arc::default(),
            notices: Vec::new(),
            pauses: Vec::new(),
            descriptions: Vec::new(),
            description: None,
        }
    }
}

impl From<SdkTracerProvider> for Tracing {
    /// Takes the provider as it is; no default is added.
    fn from(provider: SdkTracerProvider) -> Tracing {
        Tracing {
            provider,
            processors: Vec::new(),
            delivery: Arc::new(Delivery::new(0)),
            notices: Vec::new(),
            resource: None,
            description: "a tracer provider of the hook's own".to_owned(),
            follows_parent: false,
            // Nobody can tell.
            has_random_ids: false,
            direct: None,
            may_add: true,
            logs: None,
        }
    }
}

/// Something to call.
pub(super) struct Notice(pub(super) Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notice")
    }
}

/// Builds a [`Tracing`]. The methods have the names and meanings of those of `opentelemetry_sdk`'s `TracerProviderBuilder`;
/// [`with_durable_processor`](Self::with_durable_processor) and [`with_description`](Self::with_description) are ours.
#[derive(Debug)]
#[must_use]
pub struct TracingBuilder {
    /// Holds the id generator. The rest is added by `build`.
    provider: TracerProviderBuilder,
    sampler: Option<Box<dyn ShouldSample>>,
    has_id_generator: bool,
    limits: SaidLimits,
    resources: Vec<Resource>,
    processors: Vec<(Kind, Option<Arc<dyn SinkTarget>>)>,
    log_processors: Vec<CountedLogProcessor>,
    /// For the exporters; filled in by `build`.
    delivery: Arc<OnceLock<Arc<Delivery>>>,
    notices: Vec<Notice>,
    pauses: Vec<SharedPause>,
    given_up_log_records: Vec<GivenUpLogRecords>,
    /// Descriptions of the processors, for people.
    descriptions: Vec<String>,
    description: Option<String>,
}

impl TracingBuilder {
    /// Exports spans in batches, from a thread of the SDK's. `OTEL_BSP_*` applies.
    pub fn with_batch_exporter<E: SpanExporter + 'static>(self, exporter: E) -> TracingBuilder {
        let exporter = Arc::new(SharedExporter::new(exporter));
        let told = ToldExporter { exporter: Arc::clone(&exporter), delivery: Arc::clone(&self.delivery) };
        let processor = BatchSpanProcessor::builder(told).build();
        let description = format!("{} in batches", short_name::<E>());
        self.with_processor(Kind::Batch(Box::new(processor)), Some(exporter), description)
    }

    /// Exports each span as it ends, on the thread that ends it: the task waits for it.
    pub fn with_simple_exporter<E: SpanExporter + 'static>(self, exporter: E) -> TracingBuilder {
        let exporter = Arc::new(SharedExporter::new(exporter));
        let told = ToldExporter { exporter: Arc::clone(&exporter), delivery: Arc::clone(&self.delivery) };
        let processor = SimpleSpanProcessor::new(told);
        self.with_processor(Kind::Plain(Box::new(processor)), Some(exporter), short_name::<E>().to_owned())
    }

    /// Exports the log records of modules in batches, from a thread of the SDK's. `OTEL_BLRP_*` applies; without it, 65536 records may wait, and a further
    /// one is dropped for this exporter. These, and those of batches that could not be exported, are counted in `tracer status`. They are in the file of
    /// the process's records alone, as are those that a killed process had not exported yet.
    pub fn with_log_exporter<E: LogExporter + 'static>(mut self, exporter: E) -> TracingBuilder {
        let limit = match std::env::var("OTEL_BLRP_MAX_QUEUE_SIZE") {
            Ok(size) if !size.is_empty() => size.parse().unwrap_or(SDK_LOG_QUEUE_SIZE),
            _ => LOG_QUEUE_SIZE,
        };
        let config = BatchConfigBuilder::default().with_max_queue_size(limit).build();
        let (given_up, open) = (GivenUpLogRecords::default(), Arc::new(AtomicUsize::new(0)));
        let exporter = CountedLogExporter { exporter, given_up: given_up.clone(), open: Arc::clone(&open) };
        let processor = BatchLogProcessor::builder(exporter).with_batch_config(config).build();
        self.log_processors.push(CountedLogProcessor { processor, given_up: given_up.clone(), open, limit });
        self.given_up_log_records.push(given_up);
        self.descriptions.push(format!("log records to {} in batches", short_name::<E>()));
        self
    }

    /// Adds a span processor. Processors are called in the order in which they were added.
    pub fn with_span_processor<P: SpanProcessor + 'static>(self, processor: P) -> TracingBuilder {
        self.with_processor(Kind::Plain(Box::new(processor)), None, short_name::<P>().to_owned())
    }

    /// Adds a span processor that keeps spans on this machine's disk and can say when they are there. With one of these,
    /// the host need not keep the spans of ended tasks anywhere else.
    pub fn with_durable_processor<P: DurableProcessor + 'static>(self, processor: P) -> TracingBuilder {
        self.with_processor(Kind::Durable(Box::new(processor)), None, short_name::<P>().to_owned())
    }

    /// Calls `notice` when the process is about to end, before its last spans are delivered: an exporter that waits between its
    /// tries need not any more. What is not delivered then, another process delivers.
    pub fn with_closing_notice(mut self, notice: impl Fn() + Send + Sync + 'static) -> TracingBuilder {
        self.notices.push(Notice(Box::new(notice)));
        self
    }

    /// Connects the pause of an exporter's receiver with those of the session's other processes.
    pub fn with_shared_pause(mut self, pause: &SharedPause) -> TracingBuilder {
        self.pauses.push(pause.clone());
        self
    }

    /// Connects the count of an exporter's log records that it gives up with the host.
    pub fn with_given_up_log_records(mut self, given_up: &GivenUpLogRecords) -> TracingBuilder {
        self.given_up_log_records.push(given_up.clone());
        self
    }

    pub(super) fn with_boxed_processor(self, processor: Box<dyn SpanProcessor>) -> TracingBuilder {
        self.with_processor(Kind::Plain(processor), None, "a span processor".to_owned())
    }

    fn with_processor(
        mut self,
        processor: Kind,
        target: Option<Arc<dyn SinkTarget>>,
        description: String,
    ) -> TracingBuilder {
        self.processors.push((processor, target));
        self.descriptions.push(description);
        self
    }

    /// Decides which spans are sampled, whatever else is configured.
    pub fn with_sampler(mut self, sampler: impl Into<Box<dyn ShouldSample>>) -> TracingBuilder {
        self.sampler = Some(sampler.into());
        self
    }

    /// Makes trace and span ids.
    pub fn with_id_generator<G: IdGenerator + 'static>(mut self, id_generator: G) -> TracingBuilder {
        self.provider = self.provider.with_id_generator(id_generator);
        self.has_id_generator = true;
        self
    }

    /// Describes the process. Of what is said twice, here or in a second call, the last counts.
    pub fn with_resource(mut self, resource: Resource) -> TracingBuilder {
        self.resources.push(resource);
        self
    }

    /// Sets all limits of a span at once.
    pub fn with_span_limits(mut self, limits: SpanLimits) -> TracingBuilder {
        self.limits = SaidLimits::of(limits);
        self
    }

    /// Returns how many attributes a span keeps.
    pub fn with_max_attributes_per_span(mut self, limit: u32) -> TracingBuilder {
        self.limits.attributes_per_span = Some(limit);
        self
    }

    /// Returns how many span events a span keeps.
    pub fn with_max_events_per_span(mut self, limit: u32) -> TracingBuilder {
        self.limits.events_per_span = Some(limit);
        self
    }

    /// Returns how many links a span keeps.
    pub fn with_max_links_per_span(mut self, limit: u32) -> TracingBuilder {
        self.limits.links_per_span = Some(limit);
        self
    }

    /// Returns how many attributes a span event keeps.
    pub fn with_max_attributes_per_event(mut self, limit: u32) -> TracingBuilder {
        self.limits.attributes_per_event = Some(limit);
        self
    }

    /// Returns how many attributes a link keeps.
    pub fn with_max_attributes_per_link(mut self, limit: u32) -> TracingBuilder {
        self.limits.attributes_per_link = Some(limit);
        self
    }

    /// Says in a few words, for people, what becomes of the spans. The default names the exporters and processors.
    pub fn with_description(mut self, description: impl Into<String>) -> TracingBuilder {
        self.description = Some(description.into());
        self
    }

    /// Ends the description, with a default for each thing that was not said:
    ///
    /// - The sampler: what `OTEL_TRACES_SAMPLER` says, else parent-based with the ratio in
    ///   [`SAMPLING_RATIO_VARIABLE`] for new traces, else parent-based with all new traces.
    /// - The resource: `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`, `telemetry.sdk.*`, `service.name`
    ///   from [`SERVICE_VARIABLE`], or `tracer`, when nobody named the service, a random `service.instance.id`, and `process.pid`. They are merged under
    ///   the hook's: a key that the hook gives is the hook's.
    /// - Ids: random. Limits: what `OTEL_*_LIMIT` says, the lengths of values included, else 128 of each thing and 4096 links.
    ///
    /// A variable that cannot be understood counts as not set. `tracer start` says so.
    pub fn build(self) -> Tracing {
        self.build_with(&mut Reader::of_this_process())
    }

    fn build_with(self, environment: &mut Reader<'_>) -> Tracing {
        let mut provider = self.provider;
        let mut samples_roots = false;
        let has_sampler = self.sampler.is_some();
        let is_default = self.sampler.is_none() && !self.has_id_generator;
        let default_follows_parent = match self.sampler {
            Some(sampler) => {
                provider = provider.with_sampler(sampler);
                false
            }
            None => {
                let (root, follows_parent) = default_sampler(environment);
                samples_roots = match root {
                    Sampler::AlwaysOn => true,
                    Sampler::TraceIdRatioBased(ratio) => ratio >= 1.0,
                    _ => false,
                };
                let parent_based = |root| Sampler::ParentBased(Box::new(root));
                provider = provider.with_sampler(if follows_parent { parent_based(root) } else { root });
                follows_parent
            }
        };
        let has_random_ids = !self.has_id_generator;
        let limits = environment.limits();
        let span_limits = self.limits.or(&limits);
        provider = provider.with_span_limits(span_limits);
        let lengths = Lengths::of(&limits);
        let of_service = environment.text(SERVICE_VARIABLE);
        let resource = merged_resource(&self.resources, &environment.resource_attributes(), of_service);
        let new = |(processor, target)| Arc::new(GuardedProcessor::new(processor, target, &resource));
        let processors: Vec<_> = self.processors.into_iter().map(new).collect();
        let delivery = Arc::new(Delivery::new(processors.iter().filter(|processor| !processor.is_durable()).count()));
        // Nobody else has set it: the builder is gone now.
        let _ = self.delivery.set(Arc::clone(&delivery));
        self.pauses.iter().for_each(|pause| pause.connect(&delivery));
        self.given_up_log_records.iter().for_each(|given_up| given_up.connect(&delivery));
        if delivery.has_routes() {
            let untold = processors.iter().filter(|processor| !processor.is_durable() && !processor.is_of_exporter());
            let flusher = Arc::new(Flusher::new(untold.cloned().collect(), Arc::clone(&delivery)));
            let fan_out =
                FanOut { processors: processors.clone(), delivery: Arc::clone(&delivery), flusher, has_random_ids };
            provider = match lengths {
                Some(lengths) => provider.with_span_processor(ShorteningProcessor::new(fan_out, lengths)),
                None => provider.with_span_processor(fan_out),
            };
        } else {
            for processor in &processors {
                let shared = SharedProcessor { processor: Arc::clone(processor), has_random_ids };
                provider = match lengths {
                    Some(lengths) => provider.with_span_processor(ShorteningProcessor::new(shared, lengths)),
                    None => provider.with_span_processor(shared),
                };
            }
        }
        let direct = match processors.as_slice() {
            [only] if is_default && lengths.is_none() => only.span_writer().map(|writer| Direct {
                writer,
                processor: Arc::clone(only),
                limits: span_limits,
                follows_parent: default_follows_parent,
                samples_roots,
            }),
            _ => None,
        };
        let may_add = has_sampler || processors.iter().any(|processor| processor.changes_spans());
        let logs = (!self.log_processors.is_empty()).then(|| {
            let logs = SdkLoggerProvider::builder().with_resource(resource.clone());
            self.log_processors.into_iter().fold(logs, LoggerProviderBuilder::with_log_processor).build()
        });
        Tracing {
            logs,
            provider: provider.with_resource(resource.clone()).build(),
            processors,
            delivery,
            notices: self.notices,
            resource: Some(resource),
            description: self.description.unwrap_or_else(|| match self.descriptions.as_slice() {
                [] => "spans go nowhere: the hook added no exporter and no processor".to_owned(),
                some => some.join(", "),
            }),
            // The ids of a dropped span would be the generator's.
            follows_parent: default_follows_parent && !self.has_id_generator,
            has_random_ids,
            direct,
            may_add,
        }
    }
}

/// Returns what the environment says of new traces, else the configured ratio; and whether a span that has a parent is as that one.
fn default_sampler(environment: &mut Reader<'_>) -> (Sampler, bool) {
    if let Some(said) = environment.sampler() {
        let root = match said.root {
            Root::Always => Sampler::AlwaysOn,
            Root::Never => Sampler::AlwaysOff,
            Root::Ratio(ratio) => Sampler::TraceIdRatioBased(ratio),
        };
        return (root, said.follows_parent);
    }
    // What is not a number from 0 to 1 is refused where it is configured. Here, all spans are better than none.
    let ratio = environment.text(SAMPLING_RATIO_VARIABLE).and_then(|text| text.parse::<f64>().ok());
    let root = match ratio.filter(|ratio| (0.0..=1.0).contains(ratio)) {
        Some(ratio) => Sampler::TraceIdRatioBased(ratio),
        None => Sampler::AlwaysOn,
    };
    (root, true)
}

/// Returns the hook's resources over the defaults. Sorted, so that every line of a file has the same order.
fn merged_resource(given: &[Resource], environment: &[(String, String)], unnamed: Option<String>) -> Resource {
    let sdk = Resource::builder_empty().with_detector(Box::new(TelemetryResourceDetector)).build();
    let mut attributes: BTreeMap<String, Value> = BTreeMap::new();
    attributes.insert("service.instance.id".into(), random_uuid().into());
    attributes.insert("process.pid".into(), i64::from(std::process::id()).into());
    attributes.extend(sdk.iter().map(|(key, value)| (key.as_str().to_owned(), value.clone())));
    attributes.extend(environment.iter().map(|(key, value)| (key.clone(), value.clone().into())));
    for (key, value) in given.iter().flatten() {
        attributes.insert(key.as_str().to_owned(), value.clone());
    }
    // The SDK says this of a service that nobody named, in a resource of the hook's too.
    let is_named = attributes.get("service.name").is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    if !is_named {
        attributes.insert("service.name".into(), unnamed.unwrap_or_else(|| "tracer".into()).into());
    }
    let mut schema_url = None;
    for (at, url) in given.iter().filter_map(Resource::schema_url).enumerate() {
        // As the SDK merges: two that differ make none.
        schema_url = (at == 0 || schema_url == Some(url)).then_some(url);
    }
    let attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
    let builder = Resource::builder_empty().with_attributes(attributes);
    match schema_url {
        Some(url) => builder.with_schema_url([], url.to_owned()).build(),
        None => builder.build(),
    }
}

/// Returns a random UUID (version 4), from the generator of the SDK, which is seeded by the operating system.
fn random_uuid() -> String {
    let mut bytes = RandomIdGenerator::default().new_trace_id().to_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// Returns the last part of a type's path, without what it is generic over.
fn short_name<T>() -> &'static str {
    let name = std::any::type_name::<T>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::Key;

    fn value(resource: &Resource, key: &'static str) -> Option<String> {
        resource.get(&Key::from_static_str(key)).map(|value| value.as_str().into_owned())
    }

    #[test]
    fn a_hook_that_says_nothing_gets_a_whole_resource() {
        let resource = merged_resource(&[], &[], None);
        assert_eq!(value(&resource, "service.name").as_deref(), Some("tracer"));
        assert_eq!(value(&resource, "process.pid"), Some(std::process::id().to_string()));
        assert_eq!(value(&resource, "telemetry.sdk.language").as_deref(), Some("rust"));
        let id = value(&resource, "service.instance.id").unwrap();
        assert_eq!(id.len(), 36);
        assert_eq!(id.as_bytes()[14], b'4');
        assert_ne!(Some(id), value(&merged_resource(&[], &[], None), "service.instance.id"));
    }

    #[test]
    fn what_a_hook_says_of_its_resource_is_kept() {
        let given = [
            Resource::builder_empty()
                .with_schema_url([KeyValue::new("service.name", "first"), KeyValue::new("process.pid", 1)], "https://a")
                .build(),
            Resource::builder_empty().with_attributes([KeyValue::new("service.name", "second")]).build(),
        ];
        let resource = merged_resource(&given, &[], None);
        assert_eq!(value(&resource, "service.name").as_deref(), Some("second"));
        assert_eq!(value(&resource, "process.pid").as_deref(), Some("1"));
        assert_eq!(value(&resource, "telemetry.sdk.name").as_deref(), Some("opentelemetry"));
        assert_eq!(resource.schema_url(), Some("https://a"));
    }

    #[test]
    fn a_service_that_nobody_named_is_tracer() {
        // The SDK's own default, which a hook gets into its resource without asking for it.
        let resource = merged_resource(&[Resource::builder().build()], &[], None);
        assert_eq!(value(&resource, "service.name").as_deref(), Some("tracer"));
    }

    /// Returns what `build` makes of these variables alone.
    fn built(builder: TracingBuilder, variables: &[(&str, &str)]) -> Tracing {
        let lookup = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        builder.build_with(&mut Reader::new(lookup))
    }

    fn config(tracing: &Tracing) -> String {
        format!("{:?}", tracing.provider)
    }

    #[test]
    fn the_configured_ratio_is_for_new_traces_and_only_a_default() {
        for (ratio, expected) in [
            ("", "ParentBased(AlwaysOn)"),
            ("0.25", "ParentBased(TraceIdRatioBased(0.25))"),
            (" 0 ", "ParentBased(TraceIdRatioBased(0.0))"),
            ("1.5", "ParentBased(AlwaysOn)"),
            ("NaN", "ParentBased(AlwaysOn)"),
            ("half", "ParentBased(AlwaysOn)"),
        ] {
            let tracing = built(Tracing::builder(), &[(SAMPLING_RATIO_VARIABLE, ratio)]);
            assert!(config(&tracing).contains(&format!("sampler: {expected}")), "for {ratio:?}");
            assert!(tracing.follows_parent);
        }
        let half = (SAMPLING_RATIO_VARIABLE, "0.5");
        for (sampler, argument, expected, follows_parent) in [
            ("always_on", "", "AlwaysOn", false),
            ("Always_Off", "", "AlwaysOff", false),
            ("traceidratio", "0.25", "TraceIdRatioBased(0.25)", false),
            ("parentbased_always_on", "", "ParentBased(AlwaysOn)", true),
            ("parentbased_always_off", "", "ParentBased(AlwaysOff)", true),
            ("parentbased_traceidratio", "2", "ParentBased(TraceIdRatioBased(1.0))", true),
            // Not known, and so ignored.
            ("xray", "", "ParentBased(TraceIdRatioBased(0.5))", true),
        ] {
            let variables = [half, ("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)];
            let tracing = built(Tracing::builder(), &variables);
            assert!(config(&tracing).contains(&format!("sampler: {expected}")), "for {sampler}");
            assert_eq!(tracing.follows_parent, follows_parent, "for {sampler}");
        }
        let own = Tracing::builder().with_sampler(Sampler::AlwaysOff);
        let own = built(own, &[half, ("OTEL_TRACES_SAMPLER", "always_on")]);
        assert!(config(&own).contains("sampler: AlwaysOff"));
        assert!(!own.follows_parent);
    }

    #[test]
    fn the_resource_of_the_environment_is_decoded_and_below_the_hooks() {
        let variables = [
            ("OTEL_RESOURCE_ATTRIBUTES", "place=K%C3%B6ln,team=a%2Cb,service.name=listed"),
            ("OTEL_SERVICE_NAME", "named"),
        ];
        let tracing = built(Tracing::builder(), &variables);
        let resource = tracing.resource.as_ref().expect("it is described");
        assert_eq!(value(resource, "place").as_deref(), Some("Köln"));
        assert_eq!(value(resource, "team").as_deref(), Some("a,b"));
        assert_eq!(value(resource, "service.name").as_deref(), Some("named"));
        let own = Resource::builder_empty().with_attributes([KeyValue::new("service.name", "own")]).build();
        let tracing = built(Tracing::builder().with_resource(own), &variables);
        let resource = tracing.resource.as_ref().expect("it is described");
        assert_eq!(value(resource, "service.name").as_deref(), Some("own"));
        assert_eq!(value(resource, "place").as_deref(), Some("Köln"));
    }

    #[test]
    fn a_service_of_tracer_gives_its_name_to_what_nobody_names() {
        let of_service = (SERVICE_VARIABLE, "shop");
        let name = |tracing: Tracing| value(tracing.resource.as_ref().expect("it is described"), "service.name");
        assert_eq!(name(built(Tracing::builder(), &[of_service])).as_deref(), Some("shop"));
        let named = built(Tracing::builder(), &[of_service, ("OTEL_SERVICE_NAME", "named")]);
        assert_eq!(name(named).as_deref(), Some("named"));
        let own = Resource::builder_empty().with_attributes([KeyValue::new("service.name", "own")]).build();
        assert_eq!(name(built(Tracing::builder().with_resource(own), &[of_service])).as_deref(), Some("own"));
    }

    #[test]
    fn limits_of_the_environment_hold_where_the_hook_says_nothing() {
        let variables = [
            ("OTEL_ATTRIBUTE_COUNT_LIMIT", "9"),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "8"),
            ("OTEL_SPAN_EVENT_COUNT_LIMIT", "7"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "6"),
            ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "5"),
        ];
        let said = |builder| config(&built(builder, &variables));
        for limit in [
            "max_attributes_per_span: 8",
            "max_events_per_span: 7",
            "max_links_per_span: 6",
            "max_attributes_per_event: 9",
            "max_attributes_per_link: 5",
        ] {
            assert!(said(Tracing::builder()).contains(limit), "{limit}");
        }
        let one = said(Tracing::builder().with_max_events_per_span(3));
        assert!(one.contains("max_events_per_span: 3") && one.contains("max_links_per_span: 6"), "{one}");
        let all = said(Tracing::builder().with_span_limits(SpanLimits::default()));
        assert!(all.contains("max_attributes_per_span: 128") && all.contains("max_links_per_span: 128"), "{all}");
        let none = config(&built(Tracing::builder(), &[]));
        assert!(none.contains("max_events_per_span: 128") && none.contains("max_links_per_span: 4096"), "{none}");
    }

    #[test]
    fn limits_reach_the_provider() {
        let tracing = Tracing::builder()
            .with_span_limits(SpanLimits { max_events_per_span: 3, ..SpanLimits::default() })
            .with_max_attributes_per_span(4)
            .with_max_links_per_span(5)
            .with_max_attributes_per_event(6)
            .with_max_attributes_per_link(7)
            .build();
        let provider = format!("{:?}", tracing.provider);
        for limit in [
            "max_events_per_span: 3",
            "max_attributes_per_span: 4",
            "max_links_per_span: 5",
            "max_attributes_per_event: 6",
            "max_attributes_per_link: 7",
        ] {
            assert!(provider.contains(limit), "{limit} in {provider}");
        }
    }

    #[test]
    fn types_are_named_shortly() {
        assert_eq!(short_name::<Vec<std::collections::BTreeMap<u8, String>>>(), "Vec");
        assert_eq!(short_name::<SdkTracerProvider>(), "SdkTracerProvider");
    }
}
