/** One span in full: attributes, events, links, resource. */
import { useFetched } from "./fetched";
import { shown } from "./format";
import { ProblemText } from "./problem";
import { address, refine } from "./url";

type Attributes = Record<string, unknown>;

/** The object of the span file, as OpenTelemetry's Python exporter writes it. */
interface Span {
  revision?: number;
  name: string;
  context: { trace_id: string; span_id: string; trace_state: string };
  kind: string;
  parent_id: string | null;
  start_time: string;
  end_time: string | null;
  status: { status_code: string; description?: string };
  attributes: Attributes;
  events: { name: string; timestamp: string; attributes: Attributes }[];
  links: { context: { trace_id: string; span_id: string }; attributes: Attributes }[];
  resource: { attributes: Attributes };
}

function plain(value: unknown): string {
  return shown(typeof value === "string" ? value : JSON.stringify(value));
}

function Table({ title, attributes }: { title: string; attributes: Attributes | undefined }) {
  const entries = Object.entries(attributes ?? {});
  if (entries.length === 0) return null;
  return (
    <>
      <h3>{title}</h3>
      <dl>
        {entries.map(([key, value]) => (
          <div key={key}>
            <dt>{shown(key)}</dt>
            <dd>{plain(value)}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}

const bare = (id: string) => id.replace(/^0x/, "");

export function SpanDetails({ trace, span: id, revision }: { trace: string; span: string; revision: number }) {
  const { value, problem } = useFetched<Span>(`traces/${trace}/spans/${id}`);
  const span = value.value;
  return (
    <aside class="details" aria-label="Span" data-revision={revision}>
      <button class="close" onClick={() => refine({ span: undefined })} aria-label="Close">
        ×
      </button>
      <ProblemText problem={problem.value} />
      {span && (
        <>
          <h2>{shown(span.name)}</h2>
          <Table
            title="Span"
            attributes={{
              id,
              kind: span.kind.replace("SpanKind.", ""),
              start: span.start_time,
              end: span.end_time ?? "it is open",
              status: span.status.description ? `${span.status.status_code}: ${span.status.description}` : span.status.status_code,
            }}
          />
          <Table title="Attributes" attributes={span.attributes} />
          {span.events.length > 0 && <h3>Events</h3>}
          {span.events.map((event, index) => (
            <div key={index} class="event">
              <strong>{shown(event.name)}</strong> <span class="quiet">{shown(event.timestamp)}</span>
              <Table title="" attributes={event.attributes} />
            </div>
          ))}
          {span.links.length > 0 && <h3>Links</h3>}
          {span.links.map((link, index) => (
            <p key={index}>
              <a href={address(["trace", bare(link.context.trace_id)], { span: bare(link.context.span_id) })}>
                <code>{bare(link.context.span_id)}</code>
              </a>
            </p>
          ))}
          <Table title="Resource" attributes={span.resource.attributes} />
        </>
      )}
    </aside>
  );
}
