import { html, useState } from "../html.js";
import { logIn } from "../session.js";
import { Trouble } from "../ui/parts.js";

export function Login() {
  const [token, set] = useState("");
  const [problem, setProblem] = useState(null);
  const enter = (event) => {
    event.preventDefault();
    logIn(token.trim()).catch(setProblem);
  };
  return html`<form class="login" onSubmit=${enter}>
    <h1>accsd</h1>
    <${Trouble} problem=${problem} />
    <label>Token<input class="wide" type="password" autocomplete="current-password" required value=${token} onInput=${(event) => set(event.target.value)} /></label>
    <button class="primary">Log in</button>
    <p class="muted">Or run <code>accsd open</code> on the control host: it prints a link that logs you in once.</p>
  </form>`;
}
