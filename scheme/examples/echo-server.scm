;;; A WebSocket echo server on the unit tcp: `echo-server [PORT]`, by default a port that the system chooses. It prints "port N".
;;; Autobahn's fuzzing client can be pointed at it.

(import scheme (chicken base) (chicken condition) (chicken process-context) (chicken tcp) wireloom)

(ping-interval 0)
(connection-timeout 60)
(max-frame-size (* 64 1024 1024))
(max-message-size (* 64 1024 1024))

(define (echo)
  (let loop ()
    (receive (message type) (receive-message)
      (when (memq type '(text binary))
        (send-message message type)
        (loop)))))

;; A thread for each connection, from what the scheduler has; with the egg srfi-18, `thread-start!` is the same.
(define (in-thread thunk)
  (let ((thread (##sys#make-thread #f 'created 'connection (##sys#slot ##sys#current-thread 9))))
    (##sys#setslot thread 1
                   (lambda ()
                     (handle-exceptions exn #f (thunk))
                     (##sys#thread-kill! thread 'dead)
                     (##sys#schedule)))
    (##sys#setslot thread 3 'ready)
    (##sys#add-to-ready-queue thread)))

(define listener
  (let ((arguments (command-line-arguments)))
    (tcp-listen (if (pair? arguments) (string->number (car arguments)) 0) 100 "127.0.0.1")))

(print "port " (tcp-listener-port listener))
(flush-output)
(let loop ()
  (receive (in out) (tcp-accept listener)
    (in-thread (lambda () (with-websocket echo in out))))
  (loop))
