// One field. The address stays as it is, so that who logs in lands where the link led.
import { html, useState } from "../html.js";
import { ended, logIn } from "../session.js";
import { Trouble } from "../ui/parts.js";

export function Login() {
  const [token, set] = useState("");
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const enter = (event) => {
    event.preventDefault();
    setBusy(true);
    logIn(token.trim()).catch((refusal) => { setProblem(refusal); setBusy(false); });
  };
  return html`<main id="main"><form class="login" onSubmit=${enter}>
    <h1><img src=${new URL("../../icon.svg", import.meta.url).href} alt="" /> accsd</h1>
    <${Trouble} problem=${problem ?? ended.value} />
    <label>Token<input class="wide" type="password" autocomplete="current-password" required autofocus value=${token} onInput=${(event) => set(event.target.value)} /></label>
    <button class="primary" disabled=${busy}>Log in</button>
    <p class="muted">Or run <code>accsd open</code> on the control host: it prints a link that logs you in once.</p>
    <p class="muted small">A token comes from <code>accsd tokens create NAME --kind person --scope operate</code>.</p>
  </form></main>`;
}
