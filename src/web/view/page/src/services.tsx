/** Services: where each is reached, what it does, and the traces of its requests. */
import { useEffect } from "preact/hooks";
import { useFetched } from "./fetched";
import { count, elapsed, figure, shown, shownLines } from "./format";
import { type Column, Grid } from "./grid";
import { NoHead, UNAVAILABLE, useList } from "./lists";
import { KEPT, type Report, rateOf, take } from "./measured";
import { ProblemText } from "./problem";
import { Spark } from "./spark";
import { Asking, State, tone } from "./tasks";
import { address } from "./url";

interface Deployment {
  service: string;
  application: string;
  name: string;
  route_prefix: string;
  hosts: string[];
  is_ingress: boolean;
  import_path: string;
  num_replicas: number;
  autoscaling: { min: number; max: number } | null;
  short: string | null;
  max_ongoing_requests: number;
  ready: number;
  ongoing: number;
  waiting: number;
  lost: number;
}

interface Replica {
  name: string;
  application: string;
  deployment: string;
  state: string;
  pid: number | null;
  worker_id: number;
  version: number;
  uptime_ns: number;
  ongoing: number;
  hook_failure: string | null;
}

interface Proxy {
  number: number;
  state: string;
  pid: number | null;
  uptime_ns: number;
  hook_failure: string | null;
}

interface Service {
  name: string;
  version: number | null;
  rolling_out: number | null;
  state: string;
  url: string;
  deployments: Deployment[];
  replicas: Replica[];
  proxies: Proxy[];
  last_failure: string | null;
  warnings: string[];
}

const INTERVAL_MS = 2000;
const some = (number: number) => (number > 0 ? number.toLocaleString("en") : "");
/** A text in quotes for a query of traces. */
const quoted = (text: string) => `"${text.replace(/["\\]/g, "\\$&")}"`;
const tracesOf = (deployment: Deployment) => address(["traces"], { query: `name:${quoted(` ${deployment.name} `)}` });

/** Requests a second, with a small curve; nothing where nobody counts them. */
function Requests({ of, label }: { of: Record<string, string>; label: string }) {
  const values = rateOf(of);
  if (values.length === 0) return null;
  return (
    <span class="requests">
      <Spark values={values} most={KEPT} label={`Requests to ${label}, a second`} /> {figure(values.at(-1)!)} /s
    </span>
  );
}

const DEPLOYMENTS: Column<Deployment>[] = [
  {
    title: "Deployment",
    isWide: true,
    cell: (deployment) => (
      <>
        <a href={tracesOf(deployment)} title="Its traces">
          {shown(deployment.name)}
        </a>
        {deployment.is_ingress && <span class="quiet"> answers {deployment.hosts.length > 0 ? shown(`${deployment.hosts.join(", ")} `) : ""}{shown(deployment.route_prefix)}</span>}
        {deployment.short && <span class="why error">too little of {shownLines(deployment.short)}</span>}
      </>
    ),
    hint: (deployment) => shown(deployment.import_path),
  },
  { title: "Requests", isNumber: true, cell: (deployment) => <Requests of={{ app: deployment.application, deployment: deployment.name, "tracer.service": deployment.service }} label={shown(deployment.name)} /> },
  { title: "In flight", isNumber: true, cell: (deployment) => some(deployment.ongoing), hint: (deployment) => `at most ${deployment.max_ongoing_requests} in each replica` },
  { title: "Waiting", isNumber: true, cell: (deployment) => some(deployment.waiting) },
  {
    title: "Replicas",
    isNumber: true,
    cell: (deployment) => `${deployment.ready} of ${deployment.num_replicas}`,
    hint: (deployment) => (deployment.autoscaling ? `between ${deployment.autoscaling.min} and ${deployment.autoscaling.max}, by the load` : ""),
  },
  { title: "Died", isNumber: true, cell: (deployment) => some(deployment.lost) },
];

const REPLICAS: Column<Replica>[] = [
  {
    title: "Replica",
    isWide: true,
    cell: (replica) => (
      <>
        <a href={address(["logs"], { text: replica.name })} title="What it writes">
          {shown(replica.name)}
        </a>
        {replica.hook_failure && <span class="why error">{shownLines(replica.hook_failure)}</span>}
      </>
    ),
  },
  { title: "State", cell: (replica) => <State state={replica.state} /> },
  { title: "In flight", isNumber: true, cell: (replica) => some(replica.ongoing) },
  { title: "Version", isNumber: true, isMinor: true, cell: (replica) => replica.version },
  { title: "Pid", isNumber: true, isMinor: true, cell: (replica) => replica.pid ?? "" },
  { title: "Worker", isNumber: true, isMinor: true, cell: (replica) => replica.worker_id },
  { title: "Up", isNumber: true, cell: (replica) => elapsed(replica.uptime_ns) },
];

/** A link to an address that a browser opens; the text of any other. */
function Url({ url }: { url: string }) {
  return /^https?:\/\//.test(url) ? (
    <a href={url} target="_blank" rel="noreferrer">
      {shown(url)}
    </a>
  ) : (
    <code>{shown(url)}</code>
  );
}

function ServiceView({ service }: { service: Service }) {
  const { deployments, replicas, proxies } = service;
  const unwell = proxies.filter((proxy) => proxy.hook_failure);
  return (
    <section class="service">
      <h2>
        {shown(service.name)} <State state={service.state} /> <Url url={service.url} />
        <span class="space" />
        <Requests of={{ "tracer.service": service.name }} label={shown(service.name)} />
      </h2>
      <p class="quiet">
        {service.version === null ? "no version yet" : `version ${service.version}`}
        {service.rolling_out !== null && `, version ${service.rolling_out} is being rolled out`}, {count(replicas.length, "replica")} behind {count(proxies.length, "proxy", "proxies")} (
        {proxies.map((proxy) => `pid ${proxy.pid ?? "?"}`).join(", ")})
      </p>
      {service.last_failure && <p class="problem">The last rollout failed: {shownLines(service.last_failure)}</p>}
      {[...service.warnings, ...unwell.map((proxy) => proxy.hook_failure!)].map((warning) => (
        <p key={warning} class="warning">
          {shownLines(warning)}
        </p>
      ))}
      <Grid label={`Deployments of ${shown(service.name)}`} columns={DEPLOYMENTS} rows={deployments} id={(row) => `${row.application} ${row.name}`} empty="It has no deployment." />
      {replicas.length > 0 && <Grid label={`Replicas of ${shown(service.name)}`} columns={REPLICAS} rows={replicas} id={(row) => row.name} tone={(row) => tone(row.state)} empty="" />}
    </section>
  );
}

export function Services() {
  const { value, problem } = useList<"services", Service>("services");
  const metrics = useFetched<Report>("metrics", { every: INTERVAL_MS });
  const [found, report] = [value.value, metrics.value.value];
  useEffect(() => {
    if (report) take(report, metrics.at.value);
  }, [report]);
  return (
    <section class="list">
      <h1 class="unseen">Services</h1>
      {problem.value?.status === UNAVAILABLE ? <NoHead what="Services" /> : <ProblemText problem={problem.value} />}
      {!found && !problem.value && <Asking />}
      {found && !problem.value && found.services.length === 0 && (
        <p class="empty">
          Nothing is served. <code>tracer serve run</code> serves a function, a router or a program.
        </p>
      )}
      {!problem.value && found?.services.map((service) => <ServiceView key={service.name} service={service} />)}
    </section>
  );
}
