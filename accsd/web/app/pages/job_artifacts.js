// What a job has left: a list, a sheet of its images, and one of them looked at. SVG and HTML are for download only.
import { place } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { bytes } from "../job_words.js";
import { useLoaded } from "../load.js";
import { ask, params } from "../router.js";
import { Copy, Facts, Nothing, Trouble, When } from "../ui/parts.js";
import { Rows } from "../ui/rows.js";

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"]);
const TEXTS = new Set(["text/plain", "text/csv", "application/json"]);
const MOST_TEXT = 256 * 1024;
const MOST_ON_SHEET = 60;

/** image, audio, video, text; null: what it is, a browser does not show. The gateway decides by the same words. */
export function kindOf(type) {
  const plain = (type ?? "").split(";")[0].trim().toLowerCase();
  if (IMAGES.has(plain)) return "image";
  if (TEXTS.has(plain)) return "text";
  return /^(audio|video)\//.exec(plain)?.[1] ?? null;
}
export const contentOf = (artifact) => place(`/api/v1/artifacts/${artifact.id}/content`);

export function Artifacts({ job, step }) {
  const { data, problem, again } = useLoaded(`/jobs/${job.id}/artifacts`, { topics: [`job:${job.id}`], concerns: (kind, said) => kind === "event" && said.type === "artifact", gather: 1000 });
  if (!data) return html`<${Trouble} problem=${problem} again=${again} />`;
  const items = data.items.filter((each) => !step || each.task_key === step);
  if (!items.length) return html`<${Nothing}>${step ? "This step" : "This job"} has left no artifacts.<//>`;
  const images = items.filter((each) => kindOf(each.content_type) === "image").reverse();
  const shown = items.find((each) => String(each.id) === params.value.artifact);
  const look = (artifact) => ask({ tab: params.value.tab ?? "artifacts", artifact: String(artifact.id) === params.value.artifact ? null : artifact.id });
  return html`${shown && html`<${Preview} key=${shown.id} artifact=${shown} close=${() => ask({ artifact: null })} />`}
    ${images.length > 1 && html`<section class="sheet" aria-label="Images, the newest first">${images.slice(0, MOST_ON_SHEET).map((each) => html`<button key=${each.id} class="thumb" onClick=${() => look(each)} aria-pressed=${each === shown}>
      <img src=${contentOf(each)} alt="" loading="lazy" onError=${(event) => { event.target.hidden = true; }} /><span class="small">${each.name}</span></button>`)}</section>`}
    <${Rows} label="Artifacts" rows=${items} keyOf=${(each) => each.id} opens=${look} selected=${shown?.id} columns=${[
      ["Name", (each) => html`<button class="link" onClick=${() => look(each)} aria-expanded=${each === shown}>${each.name}</button>`, "key"],
      ...(step ? [] : [["Step", (each) => each.task_key ?? ""]]),
      ["Type", (each) => each.content_type ?? "", "wide-only"], ["Size", (each) => html`<span title=${each.size_bytes?.toLocaleString()}>${bytes(each.size_bytes)}</span>`, "right"],
      ["Made", (each) => html`<${When} at=${each.created_at} />`, "right wide-only"],
      ["", (each) => html`<a href=${contentOf(each)} download=${each.name.split("/").at(-1)} aria-label=${`Download ${each.name}`}>Download</a>`],
    ]} />`;
}

/** Whether its bytes can be had is asked first: what is gone, or lies on another machine, says so. */
function Preview({ artifact, close }) {
  const [refusal, refuse] = useState(undefined);
  useEffect(() => {
    const abort = new AbortController();
    fetch(contentOf(artifact), { headers: { Range: "bytes=0-0", "X-Accsd": "1" }, signal: abort.signal, credentials: "same-origin" })
      .then(async (answer) => {
        const isThere = answer.ok || answer.status === 416; // of an empty file there is no first byte
        refuse(isThere ? null : await answer.json());
        if (isThere) await answer.body?.cancel();
      }).catch(() => {});
    return () => abort.abort();
  }, []);
  const kind = kindOf(artifact.content_type);
  return html`<section class="panel preview" aria-label=${`Preview of ${artifact.name}`}><header class="step-head"><h2 class="name">${artifact.name}</h2><span class="grow"></span>
      <a class="button" href=${contentOf(artifact)} download=${artifact.name.split("/").at(-1)}>Download</a><button class="plain" onClick=${close} aria-label="Close the preview">✕</button></header>
    ${refusal ? html`<${Trouble} problem=${{ message: refusal.detail, hint: refusal.hint }} />` : refusal === null && html`<${Shown} artifact=${artifact} kind=${kind} />`}
    <${Facts} of=${[["type", artifact.content_type], ["size", bytes(artifact.size_bytes)], ["where", artifact.key && html`<code>${artifact.bucket}/${artifact.key}</code>`], ["checksum", artifact.checksum && html`<code>${artifact.checksum.slice(0, 23)}…</code>`]]} />
    <${Copy} label="Copy link" text=${new URL(contentOf(artifact), location.href).href} /> ${artifact.checksum && html`<${Copy} label="Copy checksum" text=${artifact.checksum} />`}</section>`;
}

function Shown({ artifact, kind }) {
  switch (kind) {
    case "image": return html`<img class="whole" src=${contentOf(artifact)} alt=${artifact.name} />`;
    case "audio": return html`<audio controls preload="metadata" src=${contentOf(artifact)} aria-label=${artifact.name}></audio>`;
    case "video": return html`<video class="whole" controls preload="metadata" src=${contentOf(artifact)} aria-label=${artifact.name}></video>`;
    case "text": return html`<${Text} artifact=${artifact} />`;
    default: return html`<${Nothing}>A file of this type is not shown here, because it could run a script: it is for download.<//>`;
  }
}

function Text({ artifact }) {
  const [text, set] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    fetch(contentOf(artifact), { headers: { Range: `bytes=0-${MOST_TEXT - 1}`, "X-Accsd": "1" }, signal: abort.signal, credentials: "same-origin" })
      .then((answer) => (answer.status === 416 ? "" : answer.text())).then(set, () => {});
    return () => abort.abort();
  }, []);
  if (text === null) return null;
  const isPart = artifact.size_bytes > MOST_TEXT;
  return html`<pre class="text" tabindex="0" dir="ltr">${artifact.content_type?.startsWith("application/json") && !isPart ? pretty(text) : text}</pre>${isPart && html`<p class="muted">The first ${bytes(MOST_TEXT)} of ${bytes(artifact.size_bytes)}.</p>`}`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not JSON, whatever its type says
  }
}
