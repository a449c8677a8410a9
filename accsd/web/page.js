// The first page of a gateway: who is logged in, what runs, which machines are awake; live. Text nodes only.

const here = document.baseURI.replace(/[#?].*$/, "").replace(/[^/]*$/, "");
const at = (id) => document.getElementById(id);

async function call(path, options = {}) {
  const headers = { "X-Accsd": "1", ...(options.body ? { "Content-Type": "application/json" } : {}) };
  const answer = await fetch(`${here}api/v1${path}`, { ...options, headers, credentials: "same-origin" });
  const body = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.detail), { status: answer.status });
  return body;
}

const logIn = (credential) => call("/session", { method: "POST", body: JSON.stringify(credential) });

function rows(table, lines) {
  table.tBodies[0].replaceChildren(...lines.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text ?? "" })));
    return row;
  }));
}

async function show() {
  const [jobs, overview] = await Promise.all([call("/jobs?limit=20"), call("/overview")]);
  at("attention").textContent = overview.attention.join(" ");
  rows(at("jobs"), jobs.items.map((job) => [
    job.id.slice(-8), job.workflow, job.status, job.status === "running" ? job.current_task_key : job.error_code,
    new Date(job.created_at).toLocaleString(),
  ]));
  rows(at("nodes"), overview.nodes.map((node) => [node.name, node.state, node.why]));
}

function follow() {
  const stream = new EventSource(`${here}api/v1/stream?topics=overview,jobs`);
  let waits = false;
  const again = () => {
    if (waits) return;
    waits = true;
    setTimeout(() => { waits = false; show().catch(fail); }, 300);
  };
  for (const kind of ["job", "node", "counts", "dead", "reset"]) stream.addEventListener(kind, again);
}

function fail(error) {
  at("who").textContent = error.message;
  at("login").hidden = error.status !== 401;
  at("shown").hidden = error.status === 401;
}

async function begin() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) {
    history.replaceState(null, "", location.pathname);  // it works once: nobody needs it in the address
    await logIn({ code });
  }
  const me = await call("/me");
  at("who").textContent = `${me.actor} (${me.scopes.join(", ")})`;
  at("login").hidden = true;
  at("shown").hidden = false;
  await show();
  follow();
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  logIn({ token: at("token").value }).then(begin).catch(fail);
});
at("logout").addEventListener("click", () => call("/session", { method: "DELETE" }).then(() => location.reload()).catch(fail));
begin().catch(fail);
