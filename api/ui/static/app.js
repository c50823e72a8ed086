// The dashboard's own script. It keeps the page up to date and sends what buttons say. Without it the pages can be read.
import "./unfold.js";
import "./press.js";
import "./forms.js";
import "./preview.js";
import "./many.js";
import { keepUp } from "./live.js";

document.documentElement.classList.add("js");
keepUp();
