// Search runs in a worker, which browsers refuse to a page from disk. There a frame takes its place.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      const inside = this.frame.contentWindow
      inside.document.open()
      inside.document.write("<!doctype html><body></body>")
      inside.document.close()
      inside.postMessage = data => setTimeout(() => this.tell(structuredClone(data)))
      inside.importScripts = () => {}
      const script = inside.document.createElement("script")
      script.src = new URL(url, document.baseURI)
      script.onload = () => {
        this.ready = true
        this.waiting.forEach(data => this.give(data))
      }
      script.onerror = () => this.dispatchEvent(new ErrorEvent("error"))
      inside.document.body.append(script)
    }
    postMessage(data) {
      this.ready ? this.give(data) : this.waiting.push(data)
    }
    give(data) {
      const inside = this.frame.contentWindow
      setTimeout(() => inside.dispatchEvent(new inside.MessageEvent("message", { data: inside.structuredClone(data) })))
    }
    tell(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }
    terminate() {
      this.frame.remove()
    }
  }
