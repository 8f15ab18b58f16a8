/** One span in full: attributes, events, links, resource. */
import { useFetched } from "./fetched";
import type { ComponentChildren } from "preact";
import { parts, shown } from "./format";
import { ProblemText } from "./problem";
import { address } from "./url";

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

interface Link {
  span_id: string;
  is_from_other: boolean;
  other_trace_id: string;
  other_span_id: string;
  other_name: string | null;
}

interface Props {
  trace: string;
  span: string;
  revision: number;
  nameOf: (span: string) => string;
  children?: ComponentChildren;
}

export function SpanDetails({ trace, span: id, revision, nameOf, children }: Props) {
  const { value, problem } = useFetched<Span>(`traces/${trace}/spans/${id}`);
  const links = useFetched<{ revision: number; links: Link[]; left_out: number }>(`traces/${trace}/links`);
  const span = value.value;
  const own = links.value.value?.links.filter((link) => link.span_id === id) ?? [];
  const [name, suffix] = span ? parts(span.name) : ["", ""];
  const status = span && (span.status.description ? `${span.status.status_code}: ${span.status.description}` : span.status.status_code);
  return (
    <section class="span" data-revision={revision}>
      <ProblemText problem={problem.value} />
      {span && (
        <>
          <h2>
            {name} {suffix && <i>{suffix}</i>}
          </h2>
          {span.status.status_code === "ERROR" && <p class="problem">{shown(status!)}</p>}
          {children}
          <Links title="Links" links={own.filter((link) => !link.is_from_other)} trace={trace} />
          <Links title="Linked from" links={own.filter((link) => link.is_from_other)} trace={trace} />
          <Table title="Attributes" attributes={span.attributes} />
          {span.events.length > 0 && <h3>Events</h3>}
          {span.events.map((event, index) => (
            <div key={index} class="event">
              <strong>{shown(event.name)}</strong> <span class="quiet">{shown(event.timestamp)}</span>
              <Table title="" attributes={event.attributes} />
            </div>
          ))}
          <Table
            title="Span"
            attributes={{
              id,
              ...(span.parent_id ? { parent: `${bare(span.parent_id)} ${nameOf(bare(span.parent_id))}` } : {}),
              kind: span.kind.replace("SpanKind.", ""),
              start: span.start_time,
              end: span.end_time ?? "it is open",
              status,
              ...(span.context.trace_state && span.context.trace_state !== "[]" ? { "trace state": span.context.trace_state } : {}),
            }}
          />
          <Table title="Resource" attributes={span.resource.attributes} />
        </>
      )}
    </section>
  );
}

function Links({ title, links, trace }: { title: string; links: Link[]; trace: string }) {
  if (links.length === 0) return null;
  return (
    <>
      <h3>{title}</h3>
      <ul class="links">
        {links.map((link, index) => (
          <li key={index}>
            <a href={address(["trace", link.other_trace_id], { span: link.other_span_id })}>{link.other_name ? shown(link.other_name) : <code>{link.other_span_id}</code>}</a>{" "}
            <span class="quiet">{link.other_trace_id === trace ? "in this trace" : `in ${link.other_trace_id.slice(0, 12)}`}</span>
          </li>
        ))}
      </ul>
    </>
  );
}
